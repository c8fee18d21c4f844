"""Failures in a channel of collectives, without a box."""

import contextlib
import datetime
import functools
import gc
import io
import os
import signal
import threading
import unittest
import unittest.mock

import torch.distributed as dist

import pbox
import pbox.torch
from pbox.torch import _channel
from pbox.torch._channel import Channel
from pbox.torch._lane import Lane
from pbox.torch._plan import Plan


class StubClient:
    """A client whose calls do nothing."""

    wait_timeout_ms = 60000

    def join(self):
        pass

    def leave(self):
        pass

    def close(self):
        pass


class StubLane(Lane):
    """A lane whose operations never end."""

    def make_client(self, options):
        return StubClient()

    def start(self, operation, plan):
        operation.parts.append(self._late)

    @staticmethod
    def _late(timeout_ms):
        raise pbox.Timeout(f"collective 1 is incomplete after {timeout_ms} ms: rank 1 is late")


class RefusedClose(StubLane):
    def close(self):
        raise ValueError("this lane does not close")


class OddCheck(StubLane):
    @staticmethod
    def _late(timeout_ms):
        raise ValueError("this lane does not know what is late")


class LateStart(StubLane):
    """A lane whose operations have no part yet when the watch sees that they are late."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.is_seen = threading.Event()

    def start(self, operation, plan):
        self.is_seen.wait()
        super().start(operation, plan)


class NamedLane(StubLane):
    """A lane whose client is the name of its job."""

    def make_client(self, options):
        return options["job"]


def barrier():
    plan = Plan(0, 2)
    plan.barrier()
    return plan


class ChannelTest(unittest.TestCase):
    def channel(self, make_lane=StubLane, timeout_s=0.1):
        channel = Channel(timeout_s, "Restart.", make_lane=make_lane, job="job")
        self.addCleanup(channel.close)
        return channel

    def check_late(self, operation):
        """Waits until the watch has ended the operation."""
        self.assertTrue(operation.done.wait(60))
        self.assertIsInstance(operation.error, pbox.Timeout)
        self.assertIn("after 100 ms: rank 1 is late", str(operation.error))

    def test_operation_ends_at_its_deadline(self):
        self.check_late(self.channel().start(barrier()))

    def test_operation_that_starts_after_its_deadline_ends(self):
        channel = self.channel(LateStart)
        late = channel.late

        def noted_late(*arguments):
            error = late(*arguments)
            channel._lanes[0].is_seen.set()
            return error

        channel.late = noted_late
        self.check_late(channel.start(barrier()))

    def test_watch_survives_a_channel_that_cannot_leave(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            channel = self.channel(RefusedClose, timeout_s=600)
            operation = channel.start(barrier())
            channel.close()  # returns when the watch has left the job
            self.check_late(self.channel().start(barrier()))
        self.assertIn("this lane does not close", said.getvalue())
        self.assertIsInstance(operation.error, pbox.Closed)

    def test_watch_survives_a_channel_that_cannot_be_checked(self):
        operation = self.channel(OddCheck).start(barrier())
        self.assertTrue(operation.done.wait(60))
        self.assertIn("ValueError: this lane does not know", str(operation.error))
        self.check_late(self.channel().start(barrier()))

    def test_futures_of_a_channel_that_has_left_end_and_leave_no_thread(self):
        channel = self.channel(timeout_s=600)
        operation = channel.start(barrier())
        channel.close()
        before = threading.active_count()
        for failed in (operation, channel.start(barrier()), channel.failed()):
            with self.assertRaisesRegex(RuntimeError, "has left its job"):
                failed.future().wait()
        for thread in threading.enumerate():
            if thread.name == "pbox-futures":
                thread.join(60)
        self.assertLessEqual(threading.active_count(), before)

    def test_a_failed_channel_makes_no_lanes(self):
        channel = self.channel()
        channel.close()
        with unittest.mock.patch("pbox.torch._depth.current", lambda: 3):
            operation = channel.start(barrier())
        self.assertIsInstance(operation.error, pbox.Closed)
        self.assertEqual(list(channel._lanes), [0])

    def test_watch_survives_the_longest_timeout(self):
        longest_s = datetime.timedelta.max.total_seconds()
        operation = self.channel(timeout_s=longest_s).start(barrier())
        for _ in range(3):  # the watch waits for the longest deadline between these
            with self.assertRaisesRegex(pbox.Timeout, "after 100 ms: rank 1 is late"):
                self.channel().start(barrier()).wait(longest_s)
        self.assertFalse(operation.done.is_set())

    def test_jobs_of_continuations_have_the_name_of_the_job_and_their_depth(self):
        for job, environment, name in (("mine", "theirs", "mine.2"), (None, "theirs", "theirs.2"),
                                       (None, "", "default.2")):
            with unittest.mock.patch.dict(os.environ, PBOX_JOB=environment):
                self.assertEqual(NamedLane(2, {"job": job}).client, name)
        with unittest.mock.patch.dict(os.environ, PBOX_JOB="theirs"):
            self.assertEqual(NamedLane(1, {}).client, "theirs.1")


class LocksTest(unittest.TestCase):
    def test_group_may_be_dropped_on_a_thread_that_holds_the_channels_locks(self):
        with unittest.mock.patch("pbox.torch.process_group.Channel",
                                 functools.partial(Channel, make_lane=StubLane)):
            group = pbox.torch.ProcessGroup(dist.HashStore(), 0, 1, datetime.timedelta(seconds=60))
        groups, channel = [group], group._channel
        del group

        def drop():
            with _channel._watch._changed, channel._failure_lock:
                groups.clear()
                gc.collect()

        thread = threading.Thread(target=drop, daemon=True)
        thread.start()
        thread.join(60)
        self.assertFalse(thread.is_alive())
        self.assertTrue(channel._closed.wait(60))

    def test_forked_child_closes_though_a_thread_of_its_parent_holds_a_lock(self):
        channel = Channel(600, "Restart.", make_lane=StubLane, job="job")
        held, ends = threading.Event(), threading.Event()

        def hold():
            with channel._failure_lock:
                held.set()
                ends.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # ends a child that hangs
            channel.close()
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        ends.set()
        thread.join()
        channel.close()
        self.assertEqual(status, 0)


if __name__ == "__main__":
    unittest.main()

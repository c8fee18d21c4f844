"""Failures in a channel of collectives, without a box."""

import contextlib
import io
import threading
import unittest
import unittest.mock


import pbox
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


if __name__ == "__main__":
    unittest.main()

"""The errors that pbox.Client raises, and how soon it does so. Nothing here may hang."""

import os
import signal
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock

import numpy
import torch

import pbox
from pbox import _options
from support import BoxTestCase, wait_for_file


def exchange_until(options, error_kind, report=None):
    """Exchanges until the expected error is raised; returns the text of that error."""
    with pbox.Client(**options) as client:
        array = numpy.ones(1000, dtype=numpy.float32)
        tensor = client.register("array", array)
        client.join()
        try:
            for step in range(1_000_000):
                client.push_pull(tensor, array)
                client.wait(tensor)
                if report is not None and step == 100:
                    open(f"{report}.{options['rank']}", "x").close()
        except error_kind as error:
            return str(error)
        return None


def register_differently(options):
    with pbox.Client(**options) as client:
        client.register("array", numpy.ones(10 + options["rank"], dtype=numpy.float32))
        try:
            client.join()
        except pbox.PboxError as error:
            return type(error).__name__, str(error)
        return None


def push_or_wait(options):
    """Rank 1 is late, so rank 0's wait times out; its operation must stay in flight."""
    with pbox.Client(wait_timeout_ms=300, **options) as client:
        array = numpy.ones(10, dtype=numpy.float32)
        tensor = client.register("array", array)
        client.join()
        text = None
        if options["rank"] == 0:
            client.push_pull(tensor, array)
            try:
                client.wait(tensor)
            except pbox.Timeout as error:
                text = str(error)
            client.barrier(timeout_ms=20000)
        else:
            client.barrier(timeout_ms=20000)
            client.push_pull(tensor, array)
        client.wait(tensor, timeout_ms=20000)
        return text, float(array.sum())


class ArgumentsTest(BoxTestCase):
    def test_buffers_that_do_not_fit_are_refused(self):
        client, tensor = self.joined(torch.ones(4, 4))
        for words, buffer in (("holds 17", torch.ones(17)),
                              ("float16", torch.ones(16, dtype=torch.float16)),
                              ("not contiguous", torch.ones(4, 8)[:, ::2]),
                              ("not contiguous", numpy.ones((4, 8), numpy.float32)[:, ::2]),
                              ("float64", torch.ones(16, dtype=torch.float64)),
                              ("int32", numpy.ones(16, dtype=numpy.int32)),
                              ("byte order", numpy.ones(16, numpy.dtype("f4").newbyteorder())),
                              ("meta", torch.ones(16, device="meta"))):
            with self.assertRaisesRegex(pbox.InvalidArgument, words):
                client.push_pull(tensor, buffer)
        read_only = numpy.ones(16, dtype=numpy.float32)
        read_only.flags.writeable = False
        with self.assertRaisesRegex(pbox.InvalidArgument, "read-only"):
            client.push_pull(tensor, read_only)
        result = torch.zeros(16)
        client.push_pull(tensor, read_only, result)
        client.wait(tensor)
        self.assertEqual(float(result.sum()), 16.0)

    def test_options_are_checked(self):
        with self.assertRaisesRegex(pbox.InvalidArgument, "rank"):
            self.client(world_size=2, rank=2)
        with self.assertRaisesRegex(TypeError, "colour"):
            self.client(colour="red")
        with self.assertRaisesRegex(pbox.InvalidArgument, "mode"):
            self.client(mode="guess")

    def test_options_out_of_the_range_of_their_field_are_refused(self):
        for name, value, words in (
                ("wait_timeout_ms", 2 ** 32, r"wait_timeout_ms is 4294967296: .*\[0, 4294967296\)"),
                ("join_timeout_ms", -1, r"join_timeout_ms is -1: .*\[0, 4294967296\)"),
                ("staleness", 2 ** 64 + 3, "staleness is 18446744073709551619"),
                ("lost_timeout_ms", 1.5, "lost_timeout_ms is 1.5: it must be an integer"),
                ("rank", "0", "rank is '0': it must be an integer"),
                ("guard_max_abs", -1, "guard_max_abs is -1: it must be a number"),
                ("restore", 3, "restore is 3: it must be a string")):
            with self.assertRaisesRegex(pbox.InvalidArgument, words):
                pbox.Client(**{**self.options(1), "rank": 0, name: value})
        for name in ("wait_timeout_ms", "lost_timeout_ms"):
            self.client(**{name: numpy.int64(2 ** 32 - 1)})

    def test_wait_timeout_0_is_the_default(self):
        self.assertEqual(self.client(wait_timeout_ms=0).wait_timeout_ms, 60000)
        with unittest.mock.patch.dict(os.environ, PBOX_WAIT_TIMEOUT_MS="0"):
            self.assertEqual(self.client().wait_timeout_ms, 60000)

    def test_part_of_a_millisecond_is_not_the_default(self):
        for given, taken in ((0, 0), (0.5, 1), (1.0, 1), (2 ** 32 - 1, 2 ** 32 - 1)):
            self.assertEqual(_options.milliseconds(given), taken)
        for refused in (-1, 2 ** 32 - 0.5, float("inf"), float("nan")):
            with self.assertRaises(pbox.InvalidArgument):
                _options.milliseconds(refused)

    def test_priorities_and_roots_out_of_range_are_refused(self):
        client, tensor = self.joined(torch.ones(4))
        words = r"priority is 2147483648: .* \[-2147483648, 2147483648\)"
        for call in (lambda: self.client().register("other", torch.ones(4), 2 ** 31),
                     lambda: client.push_pull(tensor, torch.ones(4), priority=2 ** 31),
                     lambda: client.set_priorities(by_tensor=[2 ** 31])):
            with self.assertRaisesRegex(pbox.InvalidArgument, words):
                call()
        group = self.client(mode="collective", job="roots")
        group.join()
        with self.assertRaisesRegex(pbox.InvalidArgument, "root is 4294967296"):
            group.collective("broadcast", torch.ones(4), root=2 ** 32)

    def test_port_comes_from_the_caller_or_the_environment(self):
        client = self.client(port="absent:device")
        client.register("tensor", torch.ones(4))
        with self.assertRaisesRegex(pbox.NotFound, "libpbox_absent.so.1"):
            client.join()
        with unittest.mock.patch.dict(os.environ, PBOX_PORT="nothing"):
            client = self.client()
            client.register("tensor", torch.ones(4))
            with self.assertRaisesRegex(pbox.InvalidArgument, "'nothing'"):
                client.join()
            client, tensor = self.joined(torch.ones(4), port="socket")
            client.push_pull(tensor, torch.ones(4))
            client.wait(tensor)

    def test_tensor_has_one_exchange_at_a_time(self):
        client = self.client(world_size=1)
        array = numpy.ones(1 << 22, dtype=numpy.float32)
        tensor = client.register("tensor", array)
        client.join()
        client.push_pull(tensor, array)
        with self.assertRaisesRegex(pbox.PboxError, "tensor"):
            client.push_pull(tensor, array)
        client.wait(tensor)

    def test_closed_client_says_so(self):
        client = self.client(world_size=2)
        array = numpy.ones(10, dtype=numpy.float32)
        tensor = client.register("tensor", array)
        with self.assertRaises(pbox.PboxError):
            client.push_pull(tensor, array)  # not joined
        client.close()
        with self.assertRaises(pbox.Closed):
            client.wait(tensor)


class LateReturn:
    """libpbox with a delayed pbox_wait(): it does not return before close() has called pbox_leave()
    or pbox_destroy(). Then it gives close() 0.3 s for pbox_destroy(), and records in
    `destroyed_during_wait` whether that was called."""

    def __init__(self, library):
        self._library = library
        self.waiting = threading.Event()
        self.left = threading.Event()
        self.destroyed = threading.Event()
        self.destroyed_during_wait = None

    def __getattr__(self, name):
        return getattr(self._library, name)

    def pbox_wait(self, *arguments):
        self.waiting.set()
        status = self._library.pbox_wait(*arguments)
        self.left.wait()
        self.destroyed_during_wait = self.destroyed.wait(0.3)
        return status

    def pbox_leave(self, context):
        status = self._library.pbox_leave(context)
        self.left.set()
        return status

    def pbox_destroy(self, context):
        self.left.set()
        self.destroyed.set()
        if self.destroyed_during_wait is not None:  # otherwise pbox_wait() is using the context
            self._library.pbox_destroy(context)


class PlaceTest(unittest.TestCase):
    def test_package_may_be_in_a_folder_near_the_root(self):
        for path in ("/pbox/_library.py", "/srv/pbox/_library.py"):
            with unittest.mock.patch.object(pbox._library, "__file__", path), \
                    unittest.mock.patch.dict(os.environ):
                os.environ.pop("PBOX_LIBRARY", None)
                self.assertEqual(str(pbox._library.checkout_folder()), "/")
                self.assertEqual(pbox._library._candidates()[-1], "libpbox.so.1")


class FailureBetween:
    """libpbox with a pbox_wait() before whose return another thread's call has failed."""

    def __init__(self, library):
        self._library = library

    def __getattr__(self, name):
        return getattr(self._library, name)

    def pbox_wait(self, context, *arguments):
        status = self._library.pbox_wait(context, *arguments)
        other = threading.Thread(target=self._library.pbox_set_sync, args=(context, None, b"odd"))
        other.start()
        other.join()
        return status


class ThreadsTest(BoxTestCase):
    def test_error_has_the_text_of_the_call_that_failed_not_of_another_threads(self):
        client, tensor = self.joined(torch.ones(4))
        tensor.id = 7
        client._library = FailureBetween(client._library)
        with self.assertRaisesRegex(pbox.InvalidArgument, "tensor 7 is unknown"):
            client.wait(tensor)


class CloseTest(BoxTestCase):
    def test_close_ends_the_calls_of_other_threads_before_it_frees_what_they_use(self):
        client, tensor = self.registered("tensor", torch.ones(4), world_size=2)
        other, other_tensor = self.registered("tensor", torch.ones(4), world_size=2, rank=1)
        joining = threading.Thread(target=other.join)
        joining.start()
        client.join()
        joining.join()
        client._library = LateReturn(client._library)
        client.push_pull(tensor, torch.ones(4))
        ends = []

        def wait():
            try:
                client.wait(tensor, timeout_ms=60000)  # rank 1 never pushes
            except pbox.PboxError as error:
                ends.append(type(error))

        waiting = threading.Thread(target=wait)
        waiting.start()
        client._library.waiting.wait()
        client.close()
        waiting.join()
        self.assertIs(client._library.destroyed_during_wait, False)
        self.assertTrue(client._library.destroyed.is_set())
        self.assertEqual(ends, [pbox.Closed])

    def test_interpreter_exits_while_a_daemon_thread_waits(self):
        for index in range(3):
            ended = subprocess.run(
                [sys.executable, "-c", EXIT_WHILE_WAITING, self.box.control, f"exit-{index}"],
                capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual((ended.returncode, ended.stderr), (0, ""))


EXIT_WHILE_WAITING = """
import sys, threading, pbox, numpy
array = numpy.ones(4, numpy.float32)
clients = [pbox.Client(box=sys.argv[1], job=sys.argv[2], rank=rank, world_size=2)
           for rank in range(2)]
tensors = [client.register("tensor", array) for client in clients]
joining = threading.Thread(target=clients[1].join)
joining.start()
clients[0].join()
joining.join()
clients[0].push_pull(tensors[0], array)
started = threading.Barrier(9)
def wait():
    started.wait()
    try:
        clients[0].wait(tensors[0])
    except pbox.Closed:
        pass
for _ in range(8):
    threading.Thread(target=wait, daemon=True).start()
started.wait()
"""


class OthersTest(BoxTestCase):
    def test_ranks_that_disagree_are_told_on_what(self):
        failures = [failure for failure in self.run_ranks(
            register_differently, 2, join_timeout_ms=3000) if failure]
        self.assertTrue(failures)
        self.assertTrue(any(kind == "Mismatch" and "array" in text for kind, text in failures),
                        failures)

    def test_timeout_names_the_late_rank_and_the_exchange_goes_on(self):
        (text, total), (_, other_total) = self.run_ranks(push_or_wait, 2)
        self.assertRegex(text, r"rank\D*1")
        self.assertEqual((total, other_total), (10.0, 10.0))

    def test_join_names_the_rank_that_has_not_come(self):
        client = self.client(world_size=2, join_timeout_ms=500)
        client.register("tensor", torch.ones(4))
        with self.assertRaisesRegex(pbox.Timeout, r"rank\D*1"):
            client.join()

    def test_survivor_of_a_killed_worker_is_told_which_rank(self):
        report = self.temporary_path("exchanging")
        ranks = self.start_ranks(exchange_until, 2, pbox.WorkerLost, report, lost_timeout_ms=1000)
        wait_for_file(f"{report}.0")
        ranks.kill(1)
        self.assertRegex(ranks.result(0), r"rank\D*1")


START_IN_A_THREAD = """
import os, threading, pbox
boxes = []
starting = threading.Thread(target=lambda: boxes.append(pbox.LocalBox()))
starting.start()
starting.join()
print(boxes[0].process.pid, flush=True)
"""


def _state(pid):
    """Returns the state of a process, "Z" if it has ended and nobody has waited for it."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(") ")[2][0]
    except OSError:
        return "Z"


class BoxTest(BoxTestCase):
    def test_box_that_is_not_there_is_named(self):
        client = self.client(box="127.0.0.1:1", join_timeout_ms=2000)
        client.register("tensor", torch.ones(4))
        with self.assertRaisesRegex(pbox.PboxError, "127.0.0.1:1"):
            client.join()

    def test_every_rank_is_told_that_the_box_was_killed(self):
        with pbox.LocalBox() as box:
            report = self.temporary_path("exchanging")
            ranks = self.start_ranks(exchange_until, 2, pbox.BoxLost, report, box=box.control,
                                     recovery="none")
            for rank in range(2):
                wait_for_file(f"{report}.{rank}")
            box.process.kill()
            for rank in range(2):
                self.assertIn(box.control, ranks.result(rank))

    def test_wait_on_a_box_that_stands_still_ends_at_its_deadline(self):
        with pbox.LocalBox() as box:
            array = numpy.ones(10, dtype=numpy.float32)
            client, tensor = self.joined(array, box=box.control)
            os.kill(box.process.pid, signal.SIGSTOP)
            os.waitpid(box.process.pid, os.WUNTRACED)  # returns when its last thread has stopped
            try:
                client.push_pull(tensor, array)
                with self.assertRaisesRegex(pbox.Timeout, "box"):
                    client.wait(tensor, timeout_ms=300)
            finally:
                os.kill(box.process.pid, signal.SIGCONT)
            client.wait(tensor)

    def test_box_that_cannot_start_says_why(self):
        with self.assertRaisesRegex(pbox.Unavailable, "no.such.key"):
            pbox.LocalBox("--no.such.key=1")

    def test_box_outlives_the_thread_that_has_started_it(self):
        boxes = []
        starting = threading.Thread(target=lambda: boxes.append(pbox.LocalBox()))
        starting.start()
        starting.join()
        box, = boxes
        self.addCleanup(box.close)
        while os.path.exists(f"/proc/self/task/{starting.native_id}"):
            time.sleep(0.01)  # the thread's end would have sent the box a signal
        array = numpy.ones(10, dtype=numpy.float32)
        client, tensor = self.joined(array, box=box.control, join_timeout_ms=3000)
        for _ in range(100):
            client.push_pull(tensor, array)
            client.wait(tensor, timeout_ms=3000)
        client.close()
        box.close()
        for thread in threading.enumerate():
            if thread.name == "pbox-local-box":
                thread.join(60)
                self.assertFalse(thread.is_alive())

    def test_box_ends_with_the_process_though_another_thread_has_started_it(self):
        for end in ("", "os.kill(os.getpid(), 9)"):
            ended = subprocess.run([sys.executable, "-c", START_IN_A_THREAD + end],
                                   capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(ended.stderr, "")
            pid = int(ended.stdout)
            deadline = time.monotonic() + 60
            while os.path.exists(f"/proc/{pid}") and _state(pid) != "Z":
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)

    def test_box_is_gone_when_it_is_closed(self):
        box = pbox.LocalBox()
        box.close()
        self.assertEqual(box.process.returncode, 0)
        client = self.client(box=box.control, join_timeout_ms=20000)
        client.register("tensor", torch.ones(4))
        with self.assertRaises(pbox.PboxError):
            client.join()


if __name__ == "__main__":
    unittest.main()

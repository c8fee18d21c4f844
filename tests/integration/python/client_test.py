"""pbox.Client against a real box."""

import os
import subprocess
import sys
import unittest

import numpy
import torch
from torch.utils.data import DataLoader, TensorDataset

import pbox
from support import BoxTestCase


def sum_of_ranks(options):
    with pbox.Client(reduction="sum", **options) as client:
        array = numpy.full(100_000, options["rank"] + 1, dtype=numpy.float32)
        tensor = client.register("array", array)
        client.join()
        for _ in range(3):
            client.push_pull(tensor, array)
            client.wait(tensor)
        client.barrier()
        return float(array[0]), float(array[-1]), client.statistics()


def exchange_until_lost(options):
    with pbox.Client(**options) as client:
        array = numpy.ones(1000, dtype=numpy.float32)
        tensor = client.register("array", array)
        client.join()
        try:
            while True:
                client.push_pull(tensor, array)
                client.wait(tensor)
        except pbox.WorkerLost as error:
            return str(error)


def register_differently(options):
    with pbox.Client(**options) as client:
        client.register("array", numpy.ones(10 + options["rank"], dtype=numpy.float32))
        try:
            client.join()
        except pbox.PboxError as error:
            return type(error).__name__, str(error)
        return None


def push_or_wait(options):
    """Rank 1 never pushes, so that rank 0 has to time out."""
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
        return text


def load_data_while_connected(options):
    with pbox.Client(reduction="sum", **options) as client:
        array = torch.ones(1000)
        tensor = client.register("array", array)
        client.join()
        data = DataLoader(TensorDataset(torch.arange(64.0)), batch_size=8, num_workers=2)
        total = 0.0
        for (batch,) in data:
            client.push_pull(tensor, array)
            total += float(batch.sum())
            client.wait(tensor)
        return total, float(array[0])


class ClientTest(BoxTestCase):
    def joined(self, like, **options):
        client = self.client(**options)
        tensor = client.register("tensor", like)
        client.join()
        return client, tensor

    def test_sum_of_two_ranks_comes_back_to_both(self):
        results = self.run_ranks(sum_of_ranks, 2)
        for first, last, statistics in results:
            self.assertEqual((first, last), (12.0, 12.0))  # 1 + 2, then twice the double
            self.assertEqual(statistics["operations_completed"], 3)
            self.assertGreaterEqual(statistics["bytes_pushed"], 3 * 400_000)

    def test_one_rank_gets_its_own_values_back(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            with self.subTest(dtype=dtype):
                source = torch.arange(100).to(dtype)
                result = torch.zeros_like(source)
                client, tensor = self.joined(source, job=f"own-values-{dtype}")
                client.push_pull(tensor, source, result)
                client.wait(tensor)
                self.assertTrue(torch.equal(result, source))

    def test_callback_comes_once_with_no_error(self):
        array = numpy.ones(10, dtype=numpy.float32)
        client, tensor = self.joined(array)
        calls = []
        client.push_pull(tensor, array, callback=lambda *arguments: calls.append(arguments))
        client.wait(tensor)
        client.close()
        self.assertEqual(calls, [(tensor, None)])

    def test_close_ends_an_operation_in_flight_with_closed(self):
        client = self.client(world_size=2)
        array = numpy.ones(10, dtype=numpy.float32)
        tensor = client.register("tensor", array)
        with self.assertRaises(pbox.PboxError):
            client.push_pull(tensor, array)  # not joined
        client.close()
        with self.assertRaises(pbox.Closed):
            client.wait(tensor)

    def test_buffers_that_do_not_fit_are_refused(self):
        client, tensor = self.joined(torch.ones(4, 4))
        for buffer in (torch.ones(17), torch.ones(16, dtype=torch.float16),
                       torch.ones(4, 8)[:, ::2], torch.ones(16, dtype=torch.float64)):
            with self.assertRaises(pbox.InvalidArgument):
                client.push_pull(tensor, buffer)
        client.push_pull(tensor, torch.ones(16))
        client.wait(tensor)

    def test_options_are_checked(self):
        with self.assertRaisesRegex(pbox.InvalidArgument, "rank"):
            self.client(world_size=2, rank=2)
        with self.assertRaisesRegex(TypeError, "colour"):
            self.client(colour="red")
        with self.assertRaisesRegex(pbox.InvalidArgument, "mode"):
            self.client(mode="guess")

    def test_box_that_is_not_there_is_named(self):
        client = self.client(box="127.0.0.1:1", join_timeout_ms=2000)
        client.register("tensor", torch.ones(4))
        with self.assertRaisesRegex(pbox.PboxError, "127.0.0.1:1"):
            client.join()

    def test_ranks_that_disagree_are_told_on_what(self):
        failures = [failure for failure in self.run_ranks(
            register_differently, 2, join_timeout_ms=3000) if failure]
        self.assertTrue(failures)
        self.assertTrue(any(kind == "Mismatch" and "array" in text for kind, text in failures),
                        failures)

    def test_timeout_names_the_late_rank(self):
        text = self.run_ranks(push_or_wait, 2)[0]
        self.assertRegex(text, r"rank\D*1")

    def test_survivor_of_a_killed_worker_is_told_which_rank(self):
        ranks = self.start_ranks(exchange_until_lost, 2, lost_timeout_ms=1000)
        self.assertFalse(ranks._pipes[0].poll(3), "the job should still be running")
        ranks.kill(1)
        self.assertRegex(ranks.result(0), r"rank\D*1")

    def test_forked_data_loaders_leave_the_client_unharmed(self):
        for total, value in self.run_ranks(load_data_while_connected, 2):
            self.assertEqual((total, value), (2016.0, 256.0))

    def test_forked_child_is_told_to_make_its_own_client(self):
        array = numpy.ones(10, dtype=numpy.float32)
        client, tensor = self.joined(array)
        child = os.fork()
        if child == 0:
            try:
                client.push_pull(tensor, array)
            except pbox.Forked:
                client.close()
                os._exit(0)
            os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        client.push_pull(tensor, array)
        client.wait(tensor)


LEAVE_WITH_WORK_IN_FLIGHT = """
import sys, torch, pbox
client = pbox.Client(box=sys.argv[1], job=sys.argv[2], rank=0, world_size=1)
array = torch.ones(1 << 20)
tensors = [client.register(f"tensor{index}", array) for index in range(8)]
client.join()
for tensor in tensors:
    client.push_pull(tensor, array.clone(), callback=lambda tensor, error: None)
"""


class InterpreterExitTest(BoxTestCase):
    def test_exit_with_work_in_flight_is_clean(self):
        for attempt in range(3):
            ended = subprocess.run(
                [sys.executable, "-c", LEAVE_WITH_WORK_IN_FLIGHT, self.box.control,
                 f"exit-{attempt}"], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual((ended.returncode, ended.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()

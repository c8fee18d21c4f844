"""pbox.Client against a real box: results are exact, and misuse does no harm."""

import multiprocessing
import os
import subprocess
import sys
import threading
import unittest

import numpy
import torch
from torch.utils.data import DataLoader, TensorDataset

import pbox
from support import BoxTestCase

# One element; less than a packet; not a multiple of a packet; several chunks.
SIZES = (1, 77, 5003, 100_000)
DTYPES = {"float32": (torch.float32, 20), "float16": (torch.float16, 10),
          "bfloat16": (torch.bfloat16, 7)}


def values(rank, size, fraction_bits):
    """Returns multiples of 2^-fraction_bits in (-1, 1), as float64. Sums of a few ranks' values are
    exact in float32, so the box rounds once and only one result is right."""
    limit = 2 ** fraction_bits
    generator = numpy.random.default_rng([rank, size])
    return generator.integers(1 - limit, limit, size) / limit


def rounded(array, dtype):
    """Rounds exact values to the dtype, each to the nearest, ties to even."""
    return torch.from_numpy(array.astype(numpy.float32)).to(dtype)


def exchange_all_sizes(options, dtype_name, reduction):
    """Runs three rounds of all sizes at once; returns the last round's results as float32."""
    dtype, fraction_bits = DTYPES[dtype_name]
    with pbox.Client(reduction=reduction, **options) as client:
        gradients = [rounded(values(options["rank"], size, fraction_bits), dtype)
                     for size in SIZES]
        tensors = [client.register(f"size {gradient.numel()}", gradient) for gradient in gradients]
        client.join()
        results = [torch.zeros_like(gradient) for gradient in gradients]
        for _ in range(3):
            for triple in zip(tensors, gradients, results):
                client.push_pull(*triple)
            client.wait_all()
        client.barrier()
        return [result.float().numpy() for result in results], client.statistics()


def exchange_lists(options):
    """Returns the gradients after two rounds of one list each, and what callbacks were told."""
    with pbox.Client(reduction="sum", **options) as client:
        gradients = [numpy.full(size, 1 + options["rank"], numpy.float32) for size in SIZES]
        tensors = [client.register(f"size {gradient.size}", gradient) for gradient in gradients]
        client.join()
        client.push_pull_many(list(zip(tensors, gradients)))
        client.wait_all()
        calls, done = [], threading.Event()
        client.push_pull_many(list(zip(tensors, gradients)), callback=lambda tensor, error: (
            calls.append((tensor.name, error)), done.set()))
        done.wait(60)
        refused = []
        for wrong in ([], [(tensors[0], gradients[0])] * 2, [(tensors[0], gradients[1])]):
            try:
                client.push_pull_many(wrong, callback=lambda *_: calls.append("refused"))
            except pbox.PboxError as error:
                refused.append(type(error).__name__)
        client.barrier()
        return gradients, calls, refused


def rounds_and_contributors(options):
    with pbox.Client(recovery="copy", on_worker_lost="partial", **options) as client:
        array = numpy.ones(1000, dtype=numpy.float32)
        tensor = client.register("array", array)
        client.join()
        seen = [(client.tensor_round(tensor), client.contributors(tensor))]
        for _ in range(2):
            client.push_pull(tensor, array)
            client.wait(tensor)
            seen.append((client.tensor_round(tensor), client.contributors(tensor)))
        return seen, client.statistics()["shadow_bytes"], client.statistics()["recoveries"]


def sum_in_place(options, delivery=None, policy=None):
    with pbox.Client(reduction="sum", delivery=delivery, priority_policy=policy,
                     **options) as client:
        array = numpy.full(1000, options["rank"] + 1, dtype=numpy.float32)
        tensor = client.register("array", array)
        client.join()
        for _ in range(3):
            client.push_pull(tensor, array)
            client.wait(tensor)
        return float(array[0]), float(array[-1])


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
    def check_exchange(self, dtype_name, reduction, world_size):
        dtype, fraction_bits = DTYPES[dtype_name]
        answers = self.run_ranks(exchange_all_sizes, world_size, dtype_name, reduction)
        for index, size in enumerate(SIZES):
            exact = sum(values(rank, size, fraction_bits) for rank in range(world_size))
            if reduction == "mean":
                exact /= world_size
            expected = rounded(exact, dtype).float().numpy()
            for rank, (results, _) in enumerate(answers):
                numpy.testing.assert_array_equal(results[index], expected, f"{size}, rank {rank}")
        for _, statistics in answers:
            self.assertEqual(statistics["operations_completed"], 3 * len(SIZES))
            self.assertEqual(statistics["operations_failed"], 0)
            element_bytes = torch.tensor([], dtype=dtype).element_size()
            self.assertGreaterEqual(statistics["bytes_pushed"], 3 * sum(SIZES) * element_bytes)

    def test_sum_of_three_ranks_in_float32_is_exact(self):
        self.check_exchange("float32", "sum", 3)

    def test_sum_of_three_ranks_in_float16_is_rounded_once(self):
        self.check_exchange("float16", "sum", 3)

    def test_sum_of_three_ranks_in_bfloat16_is_rounded_once(self):
        self.check_exchange("bfloat16", "sum", 3)

    def test_mean_of_two_ranks_is_half_the_sum(self):
        self.check_exchange("float32", "mean", 2)

    def test_a_list_of_exchanges_is_one_call_with_one_callback(self):
        for gradients, calls, refused in self.run_ranks(exchange_lists, 2):
            for gradient in gradients:  # 1 + 2, then twice that
                numpy.testing.assert_array_equal(gradient, numpy.full_like(gradient, 6))
            self.assertEqual(calls, [(f"size {SIZES[0]}", None)])
            self.assertEqual(refused, ["InvalidArgument", "AlreadyExists", "InvalidArgument"])

    def test_result_may_replace_the_gradient(self):
        for ends in self.run_ranks(sum_in_place, 2):
            self.assertEqual(ends, (12.0, 12.0))  # 1 + 2 = 3, then doubled twice

    def test_rounds_are_counted_and_results_say_how_many_are_in_them(self):
        for result in self.run_ranks(rounds_and_contributors, 2):
            self.assertEqual(result, ([(0, 0), (1, 2), (2, 2)], 4000, 0))

    def test_order_and_delivery_change_no_sum(self):
        for delivery in ("broadcast", "pull"):
            for policy in ("explicit", "forward-order", "fifo"):
                with self.subTest(delivery=delivery, policy=policy):
                    for ends in self.run_ranks(sum_in_place, 2, delivery, policy,
                                               job=f"order-{delivery}-{policy}"):
                        self.assertEqual(ends, (12.0, 12.0))

    def test_priorities_may_be_set_while_the_job_runs(self):
        array = numpy.ones(1000, dtype=numpy.float32)
        client, tensor = self.joined(array, priority_policy="forward-order")
        client.set_priorities("fifo")
        client.set_priorities("explicit", [3])
        client.set_priorities()
        client.barrier()
        client.push_pull(tensor, array)
        client.wait(tensor)
        with self.assertRaisesRegex(pbox.InvalidArgument, "2 priorities; 1 tensors"):
            client.set_priorities("explicit", [1, 2])
        with self.assertRaisesRegex(pbox.InvalidArgument, "PBOX_PRIORITY_EXPLICIT"):
            client.set_priorities("fifo", [1])
        with self.assertRaisesRegex(pbox.InvalidArgument, "explicit, forward-order, fifo"):
            client.set_priorities("lifo")

    def test_numpy_and_torch_buffers_may_be_mixed(self):
        source = numpy.arange(100, dtype=numpy.float16)
        result = torch.zeros(10, 10, dtype=torch.float16)
        client, tensor = self.joined(source)
        client.push_pull(tensor, source, result)
        client.wait(tensor)
        numpy.testing.assert_array_equal(result.numpy().ravel(), source)

    def test_registered_buffers_are_kept_and_change_no_sum(self):
        array = numpy.ones(1000, dtype=numpy.float16)
        client, tensor = self.joined(array, port="lossy:reads")
        before = sys.getrefcount(array)
        client.register_memory(array)
        self.assertEqual(sys.getrefcount(array), before + 1)
        with self.assertRaisesRegex(pbox.AlreadyExists, "2000 bytes"):
            client.register_memory(array)
        client.push_pull(tensor, array)
        client.wait(tensor)
        self.assertGreater(client.statistics()["packets_direct"], 0)
        client.unregister_memory(array)
        self.assertEqual(sys.getrefcount(array), before)
        with self.assertRaisesRegex(pbox.NotFound, "no memory is registered"):
            client.unregister_memory(array)
        client.register_memory(array)
        client.close()
        self.assertEqual(sys.getrefcount(array), before)
        self.assertEqual(array.tolist(), [1.0] * 1000)

    def test_allocated_memory_is_read_in_place_and_outlives_its_client(self):
        array = numpy.ones(100_000, dtype=numpy.float32)
        client, tensor = self.joined(array, port="shm")
        memory = client.alloc(array.nbytes)
        self.assertEqual(bytes(memory), bytes(array.nbytes))
        gradient = torch.frombuffer(memory, dtype=torch.float32)
        result = numpy.frombuffer(client.alloc(array.nbytes), numpy.float32)
        for value in (3, 5):
            gradient.fill_(value)
            client.push_pull(tensor, gradient, result)
            client.wait(tensor)
            self.assertEqual(set(result.tolist()), {value})
        statistics = client.statistics()
        self.assertGreater(statistics["packets_direct"], 0)
        self.assertEqual(statistics["packets_staged"], 0)
        client.push_pull(tensor, array)
        client.wait(tensor)
        self.assertGreater(client.statistics()["packets_staged"], 0)
        client.close()
        gradient.fill_(7)
        self.assertEqual(result[-1], 5)

    def test_freed_memory_is_given_again(self):
        client, _ = self.joined(numpy.ones(1_000_000, dtype=numpy.float32), port="shm")
        addresses = set()
        for _ in range(20):  # in total more than the shared memory holds
            memory = numpy.frombuffer(client.alloc(4_000_000), numpy.uint8)
            addresses.add(memory.ctypes.data)
            del memory
        self.assertEqual(len(addresses), 1)

    def test_memory_is_allocated_with_every_port_once_joined(self):
        client, tensor = self.registered("tensor", numpy.ones(1000, numpy.float32), port="socket")
        with self.assertRaisesRegex(pbox.InvalidArgument, "not joined yet"):
            client.alloc(100)
        client.join()
        gradient = numpy.frombuffer(client.alloc(4000), numpy.float32)
        gradient[:] = 2
        client.push_pull(tensor, gradient)
        client.wait(tensor)
        self.assertEqual(gradient.sum(), 2000)
        self.assertEqual(client.statistics()["packets_direct"], 0)

    def test_a_refused_buffer_is_an_error_that_training_survives(self):
        array = numpy.ones(1000, dtype=numpy.float32)
        client, tensor = self.joined(array, port="lossy:refuses")
        with self.assertRaisesRegex(pbox.SystemFailure, "reads nobody's memory"):
            client.register_memory(array)
        client.push_pull(tensor, array)
        client.wait(tensor)
        self.assertGreater(client.statistics()["packets_staged_refused"], 0)
        client.unregister_memory(array)

    def test_callback_comes_once_with_no_error(self):
        array = numpy.ones(10, dtype=numpy.float32)
        client, tensor = self.joined(array)
        calls = []
        client.push_pull(tensor, array, callback=lambda *arguments: calls.append(arguments))
        client.wait(tensor)
        client.close()
        self.assertEqual(calls, [(tensor, None)])

    def test_callback_may_start_the_next_exchange(self):
        array = numpy.ones(10, dtype=numpy.float32)
        client, first = self.registered("first", array)
        second = client.register("second", array)
        client.join()
        started = threading.Event()

        def start_second(*_):
            client.push_pull(second, array.copy())
            started.set()

        client.push_pull(first, array, callback=start_second)
        client.wait(first)
        self.assertTrue(started.wait(30))  # a wait may return before the callback has run
        client.wait(second)
        self.assertEqual(client.statistics()["operations_completed"], 2)


class ForkTest(BoxTestCase):
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
import sys, numpy, pbox
client = pbox.Client(box=sys.argv[1], job=sys.argv[2], rank=0, world_size=1)
array = numpy.ones(1 << 20, dtype=numpy.float32)
tensors = [client.register(f"tensor{index}", array) for index in range(8)]
client.join()
for tensor in tensors:
    client.push_pull(tensor, array.copy(), callback=lambda tensor, error: None)
"""

CLOSE_IN_A_CALLBACK = """
import sys, threading, numpy, pbox
client = pbox.Client(box=sys.argv[1], job=sys.argv[2], rank=0, world_size=1)
array = numpy.ones(4, dtype=numpy.float32)
tensor = client.register("tensor", array)
client.join()
ended = threading.Event()
def close(*_):
    try:
        client.close()
    except pbox.PboxError as error:
        print(repr(error))
    ended.set()
client.push_pull(tensor, array, callback=close)
ended.wait()
client.push_pull(tensor, array)
client.wait(tensor)
client.close()
"""


def join_and_return(options):
    """Joins as rank 0, and does not leave."""
    client = pbox.Client(rank=0, **options)
    client.register("tensor", numpy.zeros(3, numpy.float32))
    client.join()


class InterpreterExitTest(BoxTestCase):
    def test_exit_with_work_in_flight_is_clean(self):
        for attempt in range(5):
            ended = subprocess.run(
                [sys.executable, "-c", LEAVE_WITH_WORK_IN_FLIGHT, self.box.control,
                 f"exit-{attempt}"], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual((ended.returncode, ended.stderr), (0, ""))

    def test_process_of_multiprocessing_leaves_when_it_ends(self):
        for method in ("fork", "forkserver", "spawn"):
            job = f"ends-{method}"
            process = multiprocessing.get_context(method).Process(
                target=join_and_return, args=(self.options(2, job=job),))
            process.start()
            with pbox.Client(rank=1, **self.options(2, job=job)) as client:
                client.register("tensor", numpy.zeros(3, numpy.float32))
                client.join()
                process.join()
                client.barrier()  # fails if rank 0 was lost
            self.assertEqual(process.exitcode, 0)

    def test_close_in_a_callback_is_refused_and_the_client_stays_open(self):
        ended = subprocess.run(
            [sys.executable, "-c", CLOSE_IN_A_CALLBACK, self.box.control, "callback"],
            capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        self.assertRegex(ended.stdout, "InvalidArgument.*a callback cannot leave the job")


if __name__ == "__main__":
    unittest.main()

"""pbox.torch.DDPCommHook: a box averages DistributedDataParallel's gradients."""

import collections
import os
import signal
import subprocess
import sys
import unittest
import unittest.mock

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import pbox
import pbox.torch
from pbox.torch.hook import BucketMemory
from support import (BoxTestCase, Convolution, gradients_of, init_process_group, make_model,
                     shard_loss, train_locally, wait_for_file, weights_of)

STEPS = 6


def gradients_with_and_without_the_box(options, store, bucket_mb, make=make_model):
    """Returns the gradients of the same steps, averaged by gloo and by the box."""
    init_process_group(options, store)
    plain = DistributedDataParallel(make(), bucket_cap_mb=bucket_mb)
    boxed = DistributedDataParallel(make(), bucket_cap_mb=bucket_mb)
    with pbox.torch.attach(boxed, **options):
        collected = []
        for step in range(STEPS):  # DDP rebuilds its buckets after the first step
            for model in (plain, boxed):
                model.zero_grad(set_to_none=True)
                shard_loss(model, step, options["rank"]).backward()
            collected.append((gradients_of(plain), gradients_of(boxed)))
    dist.destroy_process_group()
    return collected


def packets_from_registered_buckets(options, store):
    """Runs enough steps for DDP to rebuild its buckets."""
    init_process_group(options, store)
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.001)
    with pbox.torch.attach(model, **options) as hook:
        for step in range(STEPS):
            shard_loss(model, step, options["rank"]).backward()
        return hook.client.statistics()


class Registrar:
    """A client that can only register buffers; it refuses all after the first `limit`."""

    def __init__(self, limit=100):
        self.limit = limit
        self.buffers = []

    def register_memory(self, buffer):
        if len(self.buffers) == self.limit:
            raise pbox.SystemFailure("too little may be locked")
        self.buffers.append(buffer)

    def unregister_memory(self, buffer):
        self.buffers = [other for other in self.buffers if other is not buffer]


class Bucket:
    def __init__(self, buffer, is_last):
        self.buffer = lambda: buffer
        self.is_last = lambda: is_last


class CountingClient(pbox.Client):
    """Counts calls into libpbox, and its callbacks."""

    counts = collections.Counter()

    def _call(self, function, *arguments):
        self.counts[function.__name__] += 1
        super()._call(function, *arguments)

    def _collective_ended(self, *arguments):
        self.counts["callbacks"] += 1
        super()._collective_ended(*arguments)


class CountingHook(pbox.torch.DDPCommHook):
    def __call__(self, state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        CountingClient.counts["buckets"] += 1
        CountingClient.counts["gradients"] += len(bucket.gradients())
        return super().__call__(state, bucket)


def calls_for_buckets(options, store):
    init_process_group(options, store)
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.001)
    with unittest.mock.patch("pbox.torch._lane.Client", CountingClient):
        hook = CountingHook(model, **options)
    model.register_comm_hook(None, hook)
    with hook:
        for step in range(STEPS):
            shard_loss(model, step, options["rank"]).backward()
    return CountingClient.counts


def train(options, store):
    """Uses the hook as a user does: rank and world size come from the process group."""
    init_process_group(options, store)
    model = DistributedDataParallel(make_model())
    hook = pbox.torch.DDPCommHook(model, box=options["box"], job=options["job"])
    model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        shard_loss(model, step, options["rank"]).backward()
        optimizer.step()
    hook.close()
    return weights_of(model)


def accumulate(options, store):
    """Runs two micro-batches per step; only the second one's gradients are exchanged."""
    init_process_group(options, store)
    model = DistributedDataParallel(make_model())
    with pbox.torch.attach(model, **options) as hook:
        with model.no_sync():
            shard_loss(model, 0, options["rank"]).backward()
        silent = hook.client.statistics()["operations_completed"]
        shard_loss(model, 1, options["rank"]).backward()
        return silent, gradients_of(model)


class TwoDtypes(torch.nn.Module):
    """A model of operations that torch supports for float16 on a CPU."""

    def __init__(self):
        super().__init__()
        self.small = torch.nn.Parameter(torch.ones(5, dtype=torch.float16))
        self.large = torch.nn.Parameter(torch.ones(7))

    def forward(self, factor):
        return (self.small * factor).float().sum() + (self.large * factor).sum()


def gradients_of_two_dtypes(options, store):
    init_process_group(options, store)
    model = DistributedDataParallel(TwoDtypes())
    with pbox.torch.attach(model, **options):
        model(float(options["rank"] + 1)).backward()
    return gradients_of(model)


def load_data_in_forked_children(options, store):
    init_process_group(options, store)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    with pbox.torch.attach(model, **options):
        batches = 0
        data = DataLoader(TensorDataset(torch.ones(64, 1)), batch_size=8, num_workers=2)
        for (batch,) in data:
            model(batch).sum().backward()
            batches += 1
    return batches


def backward_until_it_fails(options, store, report):
    init_process_group(options, store)
    model = DistributedDataParallel(make_model())
    with pbox.torch.attach(model, **options) as hook:
        try:
            for step in range(1_000_000):
                shard_loss(model, step, options["rank"]).backward()
                if step == 20:
                    open(f"{report}.{options['rank']}", "x").close()
        except RuntimeError as error:
            return type(error).__name__, str(error), type(hook.last_error).__name__
    return None


def backward_without_rank_1(options, store):
    init_process_group(options, store)
    model = DistributedDataParallel(make_model())
    with pbox.torch.attach(model, wait_timeout_ms=500, **options) as hook:
        if options["rank"] == 0:
            try:
                shard_loss(model, 0, 0).backward()
            except RuntimeError as error:
                return f"{type(hook.last_error).__name__}: {error}"
        hook.client.barrier(timeout_ms=20000)  # released when rank 0 has left
    return None


def train_and_pause(options, store, paths):
    """Trains until a step fails, and tries the remaining steps all the same, as a script that
    retries would do. Rank 1 stops its process in step 3, until rank 0 has seen a failure. Rank 0
    writes a checkpoint after each step. Returns the error of each step."""
    init_process_group(options, store)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    errors = []
    timeout_ms = 500 if options["rank"] == 0 else 20000
    with pbox.torch.attach(model, wait_timeout_ms=timeout_ms, **options):
        for step in range(STEPS):
            if step == 3 and options["rank"] == 1:
                open(paths["stopped"], "x").close()
                os.kill(os.getpid(), signal.SIGSTOP)
            try:
                optimizer.zero_grad()
                shard_loss(model, step, options["rank"]).backward()
                optimizer.step()
                errors.append(None)
                if options["rank"] == 0:
                    torch.save((step + 1, model.module.state_dict(), optimizer.state_dict()),
                               paths["checkpoint"])
            except RuntimeError as error:
                errors.append(str(error))
                if options["rank"] == 0 and not os.path.exists(paths["failed"]):
                    open(paths["failed"], "x").close()
    return errors


def train_from_checkpoint(options, store, paths):
    init_process_group(options, store)
    step, weights, state = torch.load(paths["checkpoint"])
    model = make_model(seed=1)
    model.load_state_dict(weights)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.load_state_dict(state)
    with pbox.torch.attach(model, **options):
        for step in range(step, STEPS):
            optimizer.zero_grad()
            shard_loss(model, step, options["rank"]).backward()
            optimizer.step()
    return weights_of(model)


def make_double_model():
    return DoubleInputs(make_model().double())


class DoubleInputs(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, inputs):
        return self.inner(inputs.double())


class HookTest(BoxTestCase):
    def store(self):
        return self.temporary_path("store")

    def check_equal_to_gloo(self, *arguments):
        for steps in self.run_ranks(gradients_with_and_without_the_box, 2, self.store(),
                                    *arguments):
            for plain, boxed in steps:
                for expected, actual in zip(plain, boxed):
                    numpy.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-9)
                    self.assertGreater(numpy.abs(actual).max(initial=0), -(actual.size == 0))

    def test_gradients_are_those_that_gloo_averages(self):
        self.check_equal_to_gloo(25)

    def test_gradients_in_many_small_buckets_are_too(self):
        self.check_equal_to_gloo(0.001)

    def test_gradients_of_channels_last_and_empty_parameters_are_too(self):
        self.check_equal_to_gloo(25, Convolution)

    def test_empty_parameters_in_buckets_of_their_own_hold_nobody_up(self):
        self.check_equal_to_gloo(0.000001, Convolution)

    def test_a_bucket_is_one_call_and_one_callback(self):
        for counts in self.run_ranks(calls_for_buckets, 2, self.store()):
            self.assertGreaterEqual(counts["buckets"], STEPS)
            self.assertGreater(counts["gradients"], counts["buckets"])
            self.assertEqual(counts["pbox_collective"], counts["buckets"])
            self.assertEqual(counts["callbacks"], counts["buckets"])

    def test_every_gradient_leaves_from_registered_memory(self):
        for counts in self.run_ranks(packets_from_registered_buckets, 2, self.store(),
                                     port="lossy:reads"):
            self.assertGreaterEqual(counts["packets_direct"], counts["operations_completed"])
            self.assertGreater(counts["operations_completed"], 0)

    def test_training_on_three_ranks_equals_training_in_one_process(self):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        expected = train_locally(model, optimizer, STEPS, 3)
        results = self.run_ranks(train, 3, self.store())
        for rank, weights in enumerate(results):
            for mine, first, local in zip(weights, results[0], expected):
                numpy.testing.assert_array_equal(mine, first, f"rank {rank} differs from rank 0")
                numpy.testing.assert_allclose(mine, local, rtol=1e-5, atol=1e-6)

    def test_no_sync_accumulates_without_an_exchange(self):
        model = make_model()
        for step in range(2):
            for rank in range(2):
                (shard_loss(model, step, rank) / 2).backward()
        for silent, gradients in self.run_ranks(accumulate, 2, self.store()):
            self.assertEqual(silent, 0)
            for actual, expected in zip(gradients, gradients_of(model)):
                numpy.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-7)

    def test_gradients_of_two_dtypes_are_averaged(self):
        for half, single in self.run_ranks(gradients_of_two_dtypes, 2, self.store()):
            numpy.testing.assert_array_equal(half, numpy.full(5, 1.5, numpy.float16))
            numpy.testing.assert_array_equal(single, numpy.full(7, 1.5, numpy.float32))

    def test_forked_data_loaders_do_no_harm(self):
        self.assertEqual(self.run_ranks(load_data_in_forked_children, 2, self.store()), [8, 8])

    def test_killed_box_fails_backward_on_every_rank(self):
        with pbox.LocalBox() as box:
            report = self.temporary_path("training")
            ranks = self.start_ranks(backward_until_it_fails, 2, self.store(), report,
                                     box=box.control, recovery="none")
            for rank in range(2):
                wait_for_file(f"{report}.{rank}")
            os.kill(box.process.pid, signal.SIGKILL)
            for rank in range(2):
                kind, text, last = ranks.result(rank)
                self.assertEqual((kind, last), ("RuntimeError", "BoxLost"))
                self.assertIn(box.control, text)

    def test_late_rank_fails_backward_by_name_at_the_deadline(self):
        text, _ = self.run_ranks(backward_without_rank_1, 2, self.store())
        self.assertRegex(text, r"Timeout: .*after 500 ms: rank\D*1")
        self.assertIn("restart all ranks from a checkpoint", text)

    def test_replicas_are_equal_after_a_timeout_and_a_restart(self):
        paths = {name: self.temporary_path(name) for name in ("stopped", "failed", "checkpoint")}
        ranks = self.start_ranks(train_and_pause, 2, self.store(), paths)
        wait_for_file(paths["failed"])
        self.assertTrue(os.path.exists(paths["stopped"]))
        os.kill(ranks.processes[1].pid, signal.SIGCONT)
        late, stopped = ranks.result(0), ranks.result(1)
        self.assertEqual(late[:3], [None] * 3)
        self.assertRegex(late[3], r"rank\D*1")
        for error in late[4:]:  # no step is taken after one that failed
            self.assertIn("restart all ranks from a checkpoint", error)
        self.assertEqual(stopped[:3], [None] * 3)
        # Rank 1 may have received the result of step 3. It gets no further without rank 0.
        for error in stopped[4:]:
            self.assertIn("rank 0", error)
        ranks.close()
        first, second = self.run_ranks(train_from_checkpoint, 2, self.store(), paths)
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for mine, other, local in zip(first, second, train_locally(model, optimizer, STEPS, 2)):
            numpy.testing.assert_array_equal(mine, other)
            numpy.testing.assert_allclose(mine, local, rtol=1e-5, atol=1e-6)

    def test_gradients_of_float64_are_too(self):
        self.check_equal_to_gloo(25, make_double_model)


class BucketMemoryTest(unittest.TestCase):
    @staticmethod
    def backward(memory, buffers):
        for buffer in buffers:
            memory.register(Bucket(buffer, buffer is buffers[-1]))

    def test_buckets_are_registered_once_and_as_long_as_there_are_such(self):
        client = Registrar()
        memory = BucketMemory(client)
        first = [torch.zeros(10), torch.zeros(20)]
        second = [torch.zeros(30), first[1]]
        for buffers in (first, first, second, second):
            self.backward(memory, buffers)
            self.assertEqual({id(buffer) for buffer in client.buffers},
                             {id(buffer) for buffer in buffers})
            self.assertEqual(len(client.buffers), 2)

    def test_a_refusal_is_a_warning_and_is_not_asked_for_again(self):
        client = Registrar(limit=1)
        memory = BucketMemory(client)
        buffers = [torch.zeros(10), torch.zeros(20), torch.zeros(30)]
        with self.assertWarnsRegex(UserWarning,
                                   "copied before they are sent.*may be locked") as warned:
            self.backward(memory, buffers)
        self.assertEqual(len(warned.warnings), 1)
        client.limit = 100
        self.backward(memory, buffers)
        self.assertEqual(len(client.buffers), 1)


EXIT_WITHOUT_CLOSING = """
import sys, torch, pbox.torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + sys.argv[3], rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
pbox.torch.attach(model, box=sys.argv[1], job=sys.argv[2])
model(torch.ones(1, 4)).sum().backward()
if len(sys.argv) > 4: raise SystemExit(int(sys.argv[4]))
"""


# The process exits while a thread of libpbox runs the continuation of a future.
EXIT_DURING_CONTINUATION = """
import sys, threading, time, torch, pbox.torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + sys.argv[3], rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
hook = pbox.torch.DDPCommHook(model, box=sys.argv[1], job=sys.argv[2])
exits = threading.Event()
def average(state, bucket):
    future = hook(state, bucket)
    future.then(lambda _: (exits.wait(), time.sleep(0.5), print("continued", flush=True)))
    return future
average.__annotations__ = hook.__call__.__annotations__
model.register_comm_hook(None, average)
model(torch.ones(1, 4)).sum().backward()
print("exits", flush=True)
exits.set()
"""


class ExitTest(BoxTestCase):
    def run_script(self, script, *arguments):
        return subprocess.run(
            [sys.executable, "-c", script, self.box.control, *arguments], capture_output=True,
            text=True, timeout=60, check=False, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"})

    def test_exit_without_closing_is_clean(self):
        for index, status in enumerate((0, 0, 3)):
            ended = self.run_script(EXIT_WITHOUT_CLOSING, f"exit-{index}",
                                    self.temporary_path("store"),
                                    *([str(status)] if status else []))
            self.assertEqual((ended.returncode, ended.stderr), (status, ""))

    def test_exit_waits_for_continuations(self):
        ended = self.run_script(EXIT_DURING_CONTINUATION, "exit", self.temporary_path("store"))
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        self.assertEqual(ended.stdout.split(), ["exits", "continued"])


if __name__ == "__main__":
    unittest.main()

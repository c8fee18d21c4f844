"""What the Python integration tests share: one box per test program, and one process per rank."""

import multiprocessing
import os
import sys
import tempfile
import traceback
import unittest

SKIPPED = 77  # ctest's SKIP_RETURN_CODE

try:
    import numpy  # noqa: F401
    import torch
    import torch.distributed as dist
except ImportError as missing:
    print(f"skipped: {missing}; install python3-torch and python3-numpy")
    sys.exit(SKIPPED)

import pbox

# A fork would inherit torch's threads' locks without the threads.
_processes = multiprocessing.get_context("spawn")


class BoxTestCase(unittest.TestCase):
    """A test against a real box, which all the tests of a class share; each has its own job."""

    @classmethod
    def setUpClass(cls):
        cls.box = pbox.LocalBox()
        cls.addClassCleanup(cls.box.close)

    def options(self, world_size, **options):
        """The client options that every rank of this test's job has in common."""
        return {"box": self.box.control, "job": self.id().rpartition(".")[2],
                "world_size": world_size, "join_timeout_ms": 30000, **options}

    def client(self, world_size=1, rank=0, **options):
        client = pbox.Client(rank=rank, **self.options(world_size, **options))
        self.addCleanup(client.close)
        return client

    def start_ranks(self, function, world_size, *arguments, **options):
        """Starts `function(options, *arguments)` in a process per rank."""
        ranks = Ranks(function, world_size, self.options(world_size, **options), arguments)
        self.addCleanup(ranks.close)
        return ranks

    def run_ranks(self, function, world_size, *arguments, **options):
        """Runs `function(options, *arguments)` in a process per rank; what each returned."""
        ranks = self.start_ranks(function, world_size, *arguments, **options)
        return [ranks.result(rank) for rank in range(world_size)]


class Ranks:
    """The processes of a job, each with a pipe for what its function returns."""

    def __init__(self, function, world_size, options, arguments):
        self._pipes = []
        self.processes = []
        for rank in range(world_size):
            receiver, sender = _processes.Pipe(duplex=False)
            process = _processes.Process(
                target=_run_rank, args=(sender, function, {**options, "rank": rank}, arguments))
            process.start()
            sender.close()
            self._pipes.append(receiver)
            self.processes.append(process)

    def result(self, rank, timeout_s=60):
        """What the rank's function returned; raises if it raised."""
        if not self._pipes[rank].poll(timeout_s):
            raise AssertionError(f"rank {rank} has not answered after {timeout_s} s")
        returned, failure = self._pipes[rank].recv()
        if failure is not None:
            raise AssertionError(f"rank {rank} failed:\n{failure}")
        return returned

    def kill(self, rank):
        self.processes[rank].kill()
        self.processes[rank].join()

    def close(self):
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


def _run_rank(sender, function, options, arguments):
    torch.set_num_threads(1)
    try:
        sender.send((function(options, *arguments), None))
    except BaseException:
        sender.send((None, traceback.format_exc()))


def init_process_group(options, folder):
    """The process group that DDP itself needs, on loopback and without a port of its own."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=options["rank"],
                            world_size=options["world_size"])


def temporary_folder(test):
    """A folder that goes when the test ends."""
    folder = tempfile.TemporaryDirectory(prefix="pbox-test-")
    test.addCleanup(folder.cleanup)
    return folder.name


def make_model(seed=0):
    """A small model, equal wherever it is made with the same seed."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16), torch.nn.Tanh(),
        torch.nn.Linear(16, 4))


def make_batch(step, rank, size=8):
    """The inputs and targets of one rank in one step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return (torch.randn(size, 8, generator=generator),
            torch.randint(0, 4, (size,), generator=generator))


def shard_loss(model, step, rank):
    inputs, targets = make_batch(step, rank)
    return torch.nn.functional.cross_entropy(model(inputs), targets)


def weights_of(model):
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]


def train_locally(model, optimizer, steps, world_size, after_step=None):
    """The oracle: the same global batches in one process, as the mean over the shards."""
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(world_size):
            (shard_loss(model, step, rank) / world_size).backward()
        optimizer.step()
        if after_step is not None:
            after_step()
    return weights_of(model)

"""Shared by the Python integration tests: one box per test program, and one process per rank."""

import functools
import multiprocessing
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import unittest

import torch
import torch.distributed as dist

import pbox
import pbox.torch

# Ranks are not forked from the test: a fork would inherit the locks of torch's threads without the
# threads. A fork server that has imported torch but never run it starts each rank in milliseconds.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["numpy", "torch.distributed", "torch.utils.data"])


class BoxTestCase(unittest.TestCase):
    """A test against a real box. All tests of a class share the box; each has its own job."""

    @classmethod
    def setUpClass(cls):
        cls.box = pbox.LocalBox()
        cls.addClassCleanup(cls.box.close)

    def options(self, world_size, **options):
        """Returns the client options that all ranks of this test's job share."""
        return {"box": self.box.control, "job": self.id().rpartition(".")[2],
                "world_size": world_size, "join_timeout_ms": 30000, **options}

    def client(self, world_size=1, rank=0, **options):
        client = pbox.Client(rank=rank, **self.options(world_size, **options))
        self.addCleanup(client.close)
        return client

    def registered(self, name, like, **options):
        client = self.client(**options)
        return client, client.register(name, like)

    def joined(self, like, **options):
        """Returns a joined client of a job of one rank and one tensor."""
        client, tensor = self.registered("tensor", like, **options)
        client.join()
        return client, tensor

    def temporary_path(self, name):
        """Returns a path in a folder that is removed when the test ends."""
        folder = tempfile.TemporaryDirectory(prefix="pbox-test-")
        self.addCleanup(folder.cleanup)
        return os.path.join(folder.name, name)

    def start_ranks(self, function, world_size, *arguments, **options):
        """Starts `function(options, *arguments)` in one process per rank."""
        ranks = Ranks(function, world_size, self.options(world_size, **options), arguments)
        self.addCleanup(ranks.close)
        return ranks

    def run_ranks(self, function, world_size, *arguments, **options):
        """Runs `function(options, *arguments)` in one process per rank. Returns their results."""
        ranks = self.start_ranks(function, world_size, *arguments, **options)
        return [ranks.result(rank) for rank in range(world_size)]


def program(name):
    """Returns the path of a program beside pboxd."""
    return str(pathlib.Path(pbox.local_box.find_pboxd()).parent / name)


def free_port():
    """Returns a TCP port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@functools.cache
def store_options():
    """Returns the arguments that dist.TCPStore needs beside a test's own. Debian 13's torch has no
    libuv, and uses it unless it is told not to."""
    try:
        dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    except RuntimeError as error:
        if "libuv" not in str(error):
            raise
        return {"use_libuv": False}
    return {}


def start_torchrun(folder, port, *arguments, **environment):
    """Starts torchrun, whose agents meet at the port. With a torch without libuv they cannot, and
    meet in a file in the folder. Returns the process; its `stdout` has all output."""
    endpoint, configuration, libuv = f"127.0.0.1:{port}", "last_call_timeout=1", {}
    if store_options():
        endpoint = pathlib.Path(folder) / "agents"
        configuration += ",store_type=file"
        libuv = {"USE_LIBUV": "0", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return subprocess.Popen(
        # torch 1.13 under Python 3.11 fails without redirection.
        [sys.executable, "-m", "torch.distributed.run", "--max_restarts=3",
         "--monitor_interval=0.1", "--rdzv_backend=c10d", f"--rdzv_endpoint={endpoint}",
         f"--rdzv_conf={configuration}", "--redirects=1", "--tee=1", *arguments],
        env={**os.environ, **libuv, **environment}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True)


def wait_for_file(path, timeout_s=60):
    """Waits until a rank has created the file."""
    deadline = time.monotonic() + timeout_s
    while not os.path.exists(path):
        assert time.monotonic() < deadline, f"no rank has created {path} in time"
        time.sleep(0.01)


class Ranks:
    """The processes of a job, each with a pipe for the result of its function."""

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

    def result(self, rank, timeout_s=240):
        """Returns the result of the rank's function; raises if the function raised."""
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


def init_process_group(options, store):
    """Makes the process group that DDP itself needs, on loopback. Creates the file `store`."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=options["rank"],
                            world_size=options["world_size"])


def make_model(seed=0):
    """Returns a small model; the same seed gives the same model in every process."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16), torch.nn.Tanh(),
        torch.nn.Linear(16, 4))


def make_batch(step, rank, size=8):
    """Returns the inputs and targets of one rank in one step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return (torch.randn(size, 8, generator=generator),
            torch.randint(0, 4, (size,), generator=generator))


class Convolution(torch.nn.Module):
    """A model with a weight in channels_last order and a parameter without elements, which DDP puts
    into a bucket of its own because of its dtype."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.images = torch.nn.Conv2d(3, 4, 3)
        self.images.to(memory_format=torch.channels_last)
        self.nothing = torch.nn.Parameter(torch.empty(0, dtype=torch.float64))
        self.classes = torch.nn.Linear(16, 4)

    def forward(self, inputs):
        images = inputs.repeat(1, 6).reshape(-1, 3, 4, 4)
        features = self.images(images.contiguous(memory_format=torch.channels_last))
        return self.classes(features.flatten(1)) + self.nothing.sum()


def shard_loss(model, step, rank):
    inputs, targets = make_batch(step, rank)
    return torch.nn.functional.cross_entropy(model(inputs), targets)


def gradients_of(model):
    return [parameter.grad.numpy().copy() for parameter in model.parameters()]


def weights_of(model):
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]


def train_locally(model, optimizer, steps, world_size, after_step=None):
    """The oracle: the same global batches in one process, with the mean over the shards."""
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(world_size):
            (shard_loss(model, step, rank) / world_size).backward()
        optimizer.step()
        if after_step is not None:
            after_step()
    return weights_of(model)


def shorten_waits(client, timeout_ms):
    """From now on the client's waits end after this time. The option wait_timeout_ms would hold for
    the initial weights too, which may take longer on a busy machine."""
    wait = client.wait
    client.wait = lambda tensor: wait(tensor, timeout_ms)


def train_with_a_late_rank(options, model, local, **more):
    """Rank 1 begins its first step only after rank 0's step() has timed out. `more`: options of
    DistributedOptimizer. Returns the number of time-outs, and the weights after each of 3 steps."""
    timeouts = 0
    collected = []
    with pbox.torch.DistributedOptimizer(local, named_parameters=model.named_parameters(),
                                         wait_timeout_ms=30000, **more, **options) as optimizer:
        if options["rank"] == 1:
            optimizer.client.barrier()
        else:
            shorten_waits(optimizer.client, 200)
        for step in range(3):
            optimizer.zero_grad()
            shard_loss(model, step, options["rank"]).backward()
            while True:
                try:
                    optimizer.step()
                    break
                except pbox.Timeout:
                    timeouts += 1
                    if timeouts == 1:
                        optimizer.client.barrier(timeout_ms=30000)
            collected.append(weights_of(model))
        optimizer.client.barrier(timeout_ms=30000)
    return timeouts, collected

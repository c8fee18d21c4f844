"""Runs each worker in a process of its own, with a deadline for its progress."""

import ctypes
import multiprocessing
import multiprocessing.connection
import os
import signal
import tempfile
import time
import traceback

import torch

SILENCE_MAX_S = 120
START_METHOD = "spawn"  # the method of multiprocessing that is safe for every caller
_PR_SET_PDEATHSIG = 1


class RankFailed(Exception):
    """A worker failed, exited early or made no progress. The text names worker and reason."""


class Rank:
    """The parameters of a worker, and its channel for answers."""

    def __init__(self, index, world_size, epochs, box, rendezvous, sender):
        self.index = index
        self.world_size = world_size
        self.epochs = epochs
        self.box = box
        self.rendezvous = rendezvous  # URL for the process group that DDP needs
        self._sender = sender

    def report(self, **epoch):
        self._sender.send(("epoch", epoch))

    def finish(self, weights):
        self._sender.send(("weights", weights))

    def fail(self, text):
        self._sender.send(("failure", text))


def run(function, world_size, epochs, box, on_epoch):
    """Runs `function(rank)` in `world_size` processes. Calls on_epoch(list of reports) after each
    epoch. Returns each rank's weights, or raises RankFailed. All processes have ended then."""
    context = multiprocessing.get_context(START_METHOD)
    with tempfile.TemporaryDirectory(prefix="pbox-demo-") as folder:
        receivers, processes = [], []
        try:
            for index in range(world_size):
                receiver, sender = context.Pipe(duplex=False)
                rank = Rank(index, world_size, epochs, box, f"file://{folder}/store", sender)
                process = context.Process(target=_run_rank, args=(function, rank), daemon=True)
                process.start()
                sender.close()
                receivers.append(receiver)
                processes.append(process)
            weights = _collect(receivers, epochs, on_epoch)
            for process in processes:
                process.join(SILENCE_MAX_S)
            return weights
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.join()


def _collect(receivers, epochs, on_epoch):
    reports = [[] for _ in receivers]
    weights = [None] * len(receivers)
    shown = 0
    deadline = time.monotonic() + SILENCE_MAX_S
    while any(mine is None for mine in weights):
        waited_for = [receivers[index] for index, mine in enumerate(weights) if mine is None]
        ready = multiprocessing.connection.wait(waited_for, max(0, deadline - time.monotonic()))
        if not ready:
            raise RankFailed(f"no worker has made progress for {SILENCE_MAX_S} s")
        for receiver in ready:
            index = receivers.index(receiver)
            kind, value = _receive(receiver, index)
            if kind == "epoch":
                reports[index].append(value)
            else:
                weights[index] = value
        while shown < epochs and all(len(mine) > shown for mine in reports):
            on_epoch([mine[shown] for mine in reports])
            shown += 1
        deadline = time.monotonic() + SILENCE_MAX_S
    return weights


def _receive(receiver, index):
    try:
        kind, value = receiver.recv()
    except EOFError:
        raise RankFailed(f"worker {index} has exited without a result") from None
    if kind == "failure":
        raise RankFailed(f"worker {index} failed:\n{value}")
    return kind, value


def _run_rank(function, rank):
    # The parent handles Ctrl-C and ends this process. The kernel ends it if the parent dies.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        function(rank)
    except Exception:
        rank.fail(traceback.format_exc())
        raise SystemExit(1) from None

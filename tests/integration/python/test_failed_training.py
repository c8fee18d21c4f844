"""Training over the backend pbox when a rank skips a step, changes a shape or dies: the others get
an error that names it, no process ends, and a new group trains."""

import os
import signal
import threading
import unittest

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import group_ranks
from support import BoxTestCase, make_model, shard_loss, wait_for_file

KINDS = ("DDP",)
# FSDP2 of torch 2.6 fails with tensors in host memory, whatever the backend.
if hasattr(getattr(torch.cpu, "Stream", None), "record_event"):
    from torch.distributed.fsdp import fully_shard
    KINDS = ("DDP", "FSDP2")
TIMEOUT_S = 4


def _half_of_it(_, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A comm hook of DDP that leaves out half of each bucket."""
    buffer = bucket.buffer()
    work = dist.all_reduce(buffer[:len(buffer) // 2], async_op=True)
    return work.get_future().then(lambda _: buffer)


def _distribute(kind, model, hook=None):
    if kind == "DDP":
        model = DistributedDataParallel(model)
        if hook is not None:
            model.register_comm_hook(None, hook)
        return model
    for layer in (*model, model):
        if list(layer.parameters()):
            fully_shard(layer)
    return model


def _train(kind, rank, steps=2, **options):
    model = _distribute(kind, make_model(), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss = shard_loss(model, step, rank)
        loss.backward()
        optimizer.step()
    return loss.item()


def _train_again(options, store, kind):
    """Destroys the failed group, and trains over a new one of `options`. Returns the loss."""
    dist.group.WORLD.abort()
    dist.destroy_process_group()
    group_ranks.start(options, f"{store}-again")
    loss = _train(kind, options["rank"], steps=3)
    dist.destroy_process_group()
    return loss


def _error_of(call):
    try:
        call()
    except RuntimeError as error:  # DDP turns the backend's error into one
        return str(error)
    return None


def skip_a_step(options, store, kind):
    """Rank 1 does not take the second step: it calls something else."""
    group_ranks.start(options, store)
    rank = options["rank"]
    _train(kind, rank, steps=1)
    error = _error_of(dist.barrier if rank == 1 else lambda: _train(kind, rank))
    return error, _train_again(options, store, kind)


def be_late(options, store, kind, seen):
    """Rank 1 does not reach the second step before the deadline."""
    group_ranks.start(options, store, timeout_s=TIMEOUT_S)
    rank = options["rank"]
    _train(kind, rank, steps=1)
    if rank == 1:
        wait_for_file(seen)
    error = _error_of(lambda: _train(kind, rank))
    with open(seen, "wb"):
        return error, _train_again(options, store, kind)


def change_a_shape(options, store, kind):
    """Rank 1 exchanges gradients of another size: by a comm hook of DDP, or of another model."""
    group_ranks.start(options, store)
    rank = options["rank"]

    def train():
        if kind == "DDP":
            _train(kind, rank, hook=_half_of_it if rank == 1 else None)
        else:
            _distribute(kind, torch.nn.Sequential(torch.nn.Linear(8, 4 + rank)))(
                torch.ones(1, 8)).sum().backward()

    return _error_of(train), _train_again(options, store, kind)


def die(options, store, kind, ready):
    """Rank 1 is killed before its second step. The others make a group without it."""
    group_ranks.start(options, store)
    rank = options["rank"]
    _train(kind, rank, steps=1)
    with open(f"{ready}.{rank}", "wb"):
        pass
    if rank == 1:
        threading.Event().wait()
    error = _error_of(lambda: _train(kind, rank))
    fewer = {**options, "rank": rank // 2, "world_size": 2}
    return error, _train_again(fewer, store, kind)


class FailedTrainingTest(BoxTestCase):
    def errors(self, function, kind, *names):
        """Returns the errors of both ranks, which afterwards have trained over a new group."""
        results = self.run_ranks(function, 2, self.temporary_path("store"), kind,
                                 *(self.temporary_path(name) for name in names))
        for _, loss in results:
            self.assertGreater(loss, 0)
        return [error for error, _ in results]

    def test_skipped_step_names_both_ranks_and_operations(self):
        for kind in KINDS:
            with self.subTest(kind):
                for error in self.errors(skip_a_step, kind):
                    for part in ("rank 0", "rank 1", "barrier"):
                        self.assertIn(part, error)

    def test_late_rank_is_named_at_the_deadline(self):
        for kind in KINDS:
            with self.subTest(kind):
                first, second = self.errors(be_late, kind, "seen")
                self.assertRegex(first, rf"after {TIMEOUT_S}000 ms.*rank\D*1")
                self.assertIn("rank 0", second)

    def test_changed_shape_names_both_ranks(self):
        for kind in KINDS:
            with self.subTest(kind):
                for error in self.errors(change_a_shape, kind):
                    for part in ("rank 0", "rank 1"):
                        self.assertIn(part, error)

    def test_dead_rank_is_named_and_the_others_train_without_it(self):
        for kind in KINDS:
            with self.subTest(kind):
                ready = self.temporary_path("ready")
                ranks = self.start_ranks(die, 3, self.temporary_path("store"), kind, ready)
                for rank in range(3):
                    wait_for_file(f"{ready}.{rank}")
                os.kill(ranks.processes[1].pid, signal.SIGKILL)
                for rank in (0, 2):
                    error, loss = ranks.result(rank)
                    self.assertIn("rank 1", error)
                    self.assertGreater(loss, 0)


if __name__ == "__main__":
    unittest.main()

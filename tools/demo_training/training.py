"""The training itself: on one of several ranks with a box, and in one process without a box."""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import digits
import pbox.torch

DEADLINES = {"join_timeout_ms": 60_000, "wait_timeout_ms": 30_000}


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.002)


def slow_down(optimizer):
    """Lowers the learning rate from epoch to epoch."""
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)


def averaged_by_the_box(rank):
    """A DistributedDataParallel script. Making and registering `hook` makes it use PBox."""
    dist.init_process_group("gloo", init_method=rank.rendezvous, rank=rank.index,
                            world_size=rank.world_size)
    model = digits.make_model()
    parallel = DistributedDataParallel(model)
    hook = pbox.torch.DDPCommHook(parallel, box=rank.box, job="demo/average", **DEADLINES)
    parallel.register_comm_hook(None, hook)
    optimizer = sgd(model)

    run_epochs(rank, model, parallel, optimizer, hook.client)
    hook.close()
    dist.destroy_process_group()


def optimized_by_the_box(rank):
    """A script for one process. DistributedOptimizer moves its optimizer to the box."""
    model = digits.make_model()
    optimizer = adam(model)
    optimizer = pbox.torch.DistributedOptimizer(
        optimizer, model, box=rank.box, job="demo/optimize", rank=rank.index,
        world_size=rank.world_size, **DEADLINES)

    run_epochs(rank, model, model, optimizer, optimizer.client)
    optimizer.close()


def sharded_over_the_box(rank):
    """A script for FSDP2. The name of the process group makes it use PBox."""
    from torch.distributed.fsdp import fully_shard  # only torch 2 has it
    os.environ.update(PBOX_BOX=rank.box, PBOX_JOB="demo/sharded")
    dist.init_process_group("pbox", init_method=rank.rendezvous, rank=rank.index,
                            world_size=rank.world_size)
    model = digits.make_model()
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer)
    fully_shard(model)
    optimizer = sgd(model)

    run_epochs(rank, model, model, optimizer, dist.group.WORLD)
    dist.destroy_process_group()


def run_epochs(rank, model, forward, optimizer, client):
    """Trains on this rank's share of each batch. Reports each epoch, and at the end the weights.
    `client` has statistics() of what this rank has exchanged."""
    train, test = digits.load()
    scheduler = slow_down(optimizer)
    for epoch in range(rank.epochs):
        started, before = time.monotonic(), client.statistics()
        losses = []
        for shares in digits.batches(train, epoch, rank.world_size):
            optimizer.zero_grad()
            loss = digits.loss_of(forward, shares[rank.index])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
        right = digits.accuracy(model, test)
        after = client.statistics()
        rank.report(
            loss=sum(losses) / len(losses), accuracy=right, seconds=time.monotonic() - started,
            exchanged=sum(after[name] - before[name] for name in ("bytes_pushed", "bytes_pulled")))
    rank.finish(digits.weights_of(model))


def alone(make_optimizer, world_size, epochs):
    """Trains on the same global batches in this process, without a box. Returns (weights,
    accuracy)."""
    train, test = digits.load()
    model = digits.make_model()
    optimizer = make_optimizer(model)
    scheduler = slow_down(optimizer)
    for epoch in range(epochs):
        for shares in digits.batches(train, epoch, world_size):
            optimizer.zero_grad()
            # Compute share by share, as the workers do, so that only the box can cause a
            # difference.
            for share in shares:
                (digits.loss_of(model, share) / world_size).backward()
            optimizer.step()
        scheduler.step()
    return digits.weights_of(model), digits.accuracy(model, test)

"""The ranks of test_sharded.py. They use what torch 2 builds on a process group."""

import datetime
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import networks
import pbox.torch

STEPS = 3


def start(options, store, backend):
    """Makes the default group with the backend. Creates the file `store`, unless the ranks are in
    networks of their own."""
    if "networks" in options:
        networks.start_group(options, backend, timeout_s=120)
        return
    os.environ["PBOX_BOX"] = options["box"]
    os.environ["PBOX_JOB"] = options["job"]
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=options["rank"],
                            world_size=options["world_size"],
                            timeout=datetime.timedelta(seconds=120))


def _model():
    """Returns a model whose weights are small integers, and so are its gradients for such inputs
    and a loss that is a sum. Their sums, and means over 2 or 4 ranks, are exact in any order."""
    generator = torch.Generator().manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.ReLU(), torch.nn.Linear(12, 5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-2, 3, parameter.shape, generator=generator))
    return model


def _train(model, rank, unshard):
    """Returns the weights after each step, as `unshard` gives them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    weights = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(10 * step + rank)
        inputs = torch.randint(-2, 3, (4, 8), generator=generator).float()
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        weights += [tensor.detach().clone().numpy() for tensor in unshard(model)]
    return weights


def _local(model):
    return list(model.parameters())


def _full(model):
    return [parameter.full_tensor().detach() for parameter in model.parameters()]


def _fsdp1(rank):
    model = FullyShardedDataParallel(_model(), device_id=torch.device("cpu"), use_orig_params=True)

    def unshard(sharded):
        with FullyShardedDataParallel.summon_full_params(sharded):
            return [parameter.detach().clone() for parameter in sharded.parameters()]

    return _train(model, rank, unshard)


def _fsdp2(rank, mesh=None, replicas=None):
    model = _model()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    if replicas:
        if rank >= mesh.size():  # attach_hsdp() has to bring the first replica's weights
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.to_local().zero_()
        pbox.torch.attach_hsdp(model, replicas)
    return _train(model, rank, _full)


def _tensors(world_size):
    """Returns the results of redistributing a DTensor."""
    mesh = init_device_mesh("cpu", (world_size,))
    whole = torch.arange(60.0).reshape(12, 5)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    product = (rows @ distribute_tensor(torch.ones(5, 3), mesh, [Replicate()])).full_tensor()
    return [rows.to_local().numpy(), columns.to_local().numpy(), product.numpy(),
            rows.sum(0).full_tensor().numpy()]


def _collectives(rank, world_size):
    """Returns the results of functional collectives, coalesced and object collectives."""
    group = dist.group.WORLD
    mine = torch.arange(6.0) + 10 * rank
    results = [
        functional.all_reduce(mine, "sum", group), functional.all_gather_single(mine, 0, group),
        functional.reduce_scatter_single(mine.repeat(world_size), "sum", 0, group),
        functional.broadcast(mine, 1, group),
        *functional.all_reduce_coalesced([mine, mine[:1] * 2], "max", group),
        *functional.all_gather_single_coalesced([mine, mine[:2]], group)]
    tensors = [mine.clone(), mine[:3].clone()]
    with dist._coalescing_manager(group):  # pylint: disable=protected-access
        for tensor in tensors:
            dist.all_reduce(tensor)
    results += tensors
    exchanged = functional.all_to_all_single(torch.arange(2.0 * world_size) + 100 * rank, None,
                                             None, group)
    objects = [None] * world_size
    dist.all_gather_object(objects, {"rank": rank})
    mine = [None]
    dist.scatter_object_list(mine, [str(other) for other in range(world_size)], src=0)
    return [tensor.numpy() for tensor in results], exchanged.numpy(), objects, mine


def _checkpoint(rank, folder):
    """Saves a sharded model, changes it, and returns the weights that are loaded again."""
    model = fully_shard(_model())
    _train(model, rank, _full)
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder)
    saved = [tensor.numpy().copy() for tensor in _full(model)]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().zero_()
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    return saved, [tensor.numpy() for tensor in _full(model)]


def two_ranks(options, store, folder, backend):
    """Returns what two ranks compute over the backend, by name."""
    start(options, store, backend)
    rank = options["rank"]
    exchanged = _collectives(rank, 2)
    results = {
        "DDP": _train(DistributedDataParallel(_model()), rank, _local), "FSDP1": _fsdp1(rank),
        "FSDP2": _fsdp2(rank), "DTensor": _tensors(2), "collectives": exchanged[0],
        "checkpoint": _checkpoint(rank, f"{folder}-{backend}")}
    dist.destroy_process_group()
    return results, exchanged[1:]


def four_ranks(options, store, backend):
    """Returns what four ranks compute over the backend, by name."""
    start(options, store, backend)
    rank = options["rank"]
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    results = {"FSDP2": _fsdp2(rank), "HSDP": _fsdp2(rank, mesh)}
    if backend == "gloo":
        results["attached"] = results["HSDP"]
    else:
        results["attached"] = _fsdp2(rank, mesh["shards"], replicas=2)
    dist.destroy_process_group()
    return results

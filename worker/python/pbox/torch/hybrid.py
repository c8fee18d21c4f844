"""Hybrid sharding: FSDP2 inside a node, the box between the nodes."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..errors import InvalidArgument


def attach_hsdp(model: torch.nn.Module, replicas: int) -> dist.ProcessGroup:
    """Averages the gradients of `replicas` copies of a sharded model on the box. Returns the group
    of the ranks that hold this rank's shard.

        mesh = dist.device_mesh.init_device_mesh("cpu", (replicas, shards))["shards"]
        fully_shard(model, mesh=mesh)
        pbox.torch.attach_hsdp(model, replicas)

    Call it on every rank, after fully_shard(), with a model that was sharded over world size /
    `replicas` consecutive ranks. The mesh of the shards may have any backend, and stays inside a
    node. Each shard has a job of its own on the box, of the ranks that hold it. So the box receives
    each gradient once per replica, and no two nodes exchange anything.

    It takes the replica count, not a mesh: FSDP2 averages natively over the first dimension of a
    2-D mesh, so a model that is to use the box has a 1-D mesh. Every replica begins with the
    weights and buffers of the first one. A model whose module has parameters on several meshes is
    refused by torch."""
    # Only torch 2.6 and newer have FSDPModule.
    from torch.distributed.fsdp import FSDPModule  # pylint: disable=import-outside-toplevel
    world_size = dist.get_world_size()
    if replicas < 1 or world_size % replicas != 0:
        raise InvalidArgument(f"replicas is {replicas}: it must divide the world size {world_size}")
    shards = world_size // replicas
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not modules:
        raise InvalidArgument("no module of the model is sharded: call fully_shard() first")
    parameters = [parameter for parameter in model.parameters() if hasattr(parameter, "to_local")]
    for parameter in parameters:
        if parameter.device_mesh.size() != shards:
            raise InvalidArgument(
                f"a parameter is sharded over {parameter.device_mesh.size()} ranks: with a world "
                f"size of {world_size} and {replicas} replicas it must be {shards}")
    group = None
    for shard in range(shards):  # every rank makes every group
        made = dist.new_group(list(range(shard, world_size, shards)), backend="pbox")
        if dist.get_rank() % shards == shard:
            group = made
    first = dist.get_rank() % shards
    for tensor in (*(parameter.to_local() for parameter in parameters), *model.buffers()):
        dist.broadcast(tensor.detach(), first, group=group)
    for module in modules:
        module.set_all_reduce_hook(
            lambda gradient: dist.all_reduce(gradient, op=dist.ReduceOp.AVG, group=group))
    return group

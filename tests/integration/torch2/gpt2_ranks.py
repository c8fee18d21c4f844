"""The ranks of test_gpt2.py."""

import resource

import sharded_ranks
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel

PARAMETERS = 124_439_808
STEPS = 20
TOKENS = 24


def _make():
    torch.manual_seed(0)
    # Dropout would draw other numbers in another process.
    model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS
    return model


def _sharded(model, mesh):
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _by_ddp(model):
    return DistributedDataParallel(model)


def _by_fsdp2(model):
    return _sharded(model, init_device_mesh("cpu", (dist.get_world_size(),)))


def _by_hsdp(model):
    """Two replicas of one shard each: every gradient is averaged between the replicas."""
    return _sharded(model, init_device_mesh("cpu", (2, 1), mesh_dim_names=("replica", "shard")))


_WAYS = {"ddp": _by_ddp, "fsdp2": _by_fsdp2, "hsdp": _by_hsdp}


def train(options, way, store, backend):
    """Returns the losses of this rank's steps, and the peak of its memory in GiB."""
    sharded_ranks.start(options, store, backend)
    model = _WAYS[way](_make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * step + options["rank"])
        # A rule that can be learned: each token is the one before it plus one, modulo 97.
        first = torch.randint(0, 97, (1, 1), generator=generator)
        tokens = (first + torch.arange(TOKENS)) % 97
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    dist.destroy_process_group()
    return losses, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** 20

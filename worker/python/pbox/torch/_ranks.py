"""Rank and world size from torch.distributed."""

import os

import torch.distributed as dist


def with_process_group(model, options):
    """Returns the client's options, with rank and world size from torch.distributed unless the
    caller or PBOX_RANK and PBOX_WORLD_SIZE set them."""
    if not (dist.is_available() and dist.is_initialized()):
        return options
    group = getattr(model, "process_group", None)
    filled = dict(options)
    if filled.get("rank") is None and "PBOX_RANK" not in os.environ:
        filled["rank"] = dist.get_rank(group)
    if filled.get("world_size") is None and "PBOX_WORLD_SIZE" not in os.environ:
        filled["world_size"] = dist.get_world_size(group)
    return filled

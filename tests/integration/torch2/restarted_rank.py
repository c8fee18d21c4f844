"""A script for torchrun: trains with DDP over the box, and one rank fails in each start but the
last. Arguments: number of restarts, and the file to write at the end."""

import os
import pathlib
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pbox.torch  # makes the backend known


def main(restarts, done):
    start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("pbox")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        if step == 2 and start < restarts and dist.get_rank() == start % dist.get_world_size():
            if start % 4 < 2:
                raise RuntimeError(f"rank {dist.get_rank()} fails in start {start}")
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(torch.ones(4, 64) * (dist.get_rank() + 1)).square().mean().backward()
        optimizer.step()
    weight = model.module.weight.detach().clone()
    dist.broadcast(weight, 0)
    assert torch.equal(weight, model.module.weight), "the replicas differ"
    dist.barrier()
    if dist.get_rank() == 0:
        pathlib.Path(done).write_text(str(start), encoding="ascii")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

"""PBox for PyTorch: the box is a backend of torch.distributed, averages DistributedDataParallel's
gradients, runs the optimizer, or takes DiLoCo's outer steps.

    dist.init_process_group("pbox")                                # the box carries collectives
    pbox.torch.attach(ddp_model)                                   # the box averages gradients
    optimizer = pbox.torch.DistributedOptimizer(optimizer, model)  # the box runs the optimizer
    diloco = pbox.torch.DiLoCo(model, optimizer, sync_every=24)    # ranks exchange every 24 steps
"""

from .diloco import DiLoCo, LocalSGD
from .hook import DDPCommHook, attach
from .hybrid import attach_hsdp
from .optimizer import DistributedOptimizer
from .process_group import ProcessGroup, register
from .scaler import GradScaler

__all__ = ["DDPCommHook", "DiLoCo", "DistributedOptimizer", "GradScaler", "LocalSGD",
           "ProcessGroup", "attach", "attach_hsdp"]

register()

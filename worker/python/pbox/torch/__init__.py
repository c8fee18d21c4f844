"""PBox for PyTorch: the box is a backend of torch.distributed, averages DistributedDataParallel's
gradients, or runs the optimizer.

    dist.init_process_group("pbox")                                # the box carries collectives
    pbox.torch.attach(ddp_model)                                   # the box averages gradients
    optimizer = pbox.torch.DistributedOptimizer(optimizer, model)  # the box runs the optimizer
"""

from .hook import DDPCommHook, attach
from .hybrid import attach_hsdp
from .optimizer import DistributedOptimizer
from .process_group import ProcessGroup, register
from .scaler import GradScaler

__all__ = ["DDPCommHook", "DistributedOptimizer", "GradScaler", "ProcessGroup", "attach",
           "attach_hsdp"]

register()

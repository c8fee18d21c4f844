"""PBox for PyTorch: the box averages DistributedDataParallel's gradients, or runs the optimizer.

    pbox.torch.attach(ddp_model)                                  # the box averages gradients
    optimizer = pbox.torch.DistributedOptimizer(optimizer, model)  # the box runs the optimizer
"""

from .hook import DDPCommHook, attach
from .optimizer import DistributedOptimizer
from .scaler import GradScaler

__all__ = ["DDPCommHook", "DistributedOptimizer", "GradScaler", "attach"]

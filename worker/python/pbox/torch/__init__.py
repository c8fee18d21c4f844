"""PBox for PyTorch: gradients of DistributedDataParallel through a box, or the optimizer on it.

    pbox.torch.attach(ddp_model)                                  # the box averages gradients
    optimizer = pbox.torch.DistributedOptimizer(optimizer, model)  # the box runs the optimizer
"""

from .hook import DDPCommHook, attach
from .optimizer import DistributedOptimizer

__all__ = ["DDPCommHook", "DistributedOptimizer", "attach"]

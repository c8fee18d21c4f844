"""A stand-in in `.grad` for a gradient that the box has."""

import torch

from ..errors import InvalidArgument


class SentGradient(torch.Tensor):
    """Stands in `.grad` between backward() and step(), and refuses every use. Without it
    clip_grad_norm_() would find no gradient and do nothing, and a GradScaler would leave scaled
    gradients to the box."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):
        raise InvalidArgument(
            "DistributedOptimizer: backward() has sent this gradient to the box, so it cannot be "
            "read, clipped or unscaled here. Let the box do it: DistributedOptimizer(..., "
            "max_grad_norm=1.0) clips, and pbox.torch.GradScaler replaces torch's GradScaler. To "
            "clip each rank's own gradient before it is averaged, run backward() under no_sync() "
            "and clip before step()")

    def __repr__(self):
        return "<gradient that backward() has sent to the box>"


def sent_gradient(parameter):
    """Returns a SentGradient for the parameter. It takes no memory for elements."""
    nothing = torch.zeros((), dtype=parameter.dtype, device=parameter.device)
    return nothing.expand(parameter.shape).as_subclass(SentGradient)

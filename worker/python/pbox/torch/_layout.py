"""The memory of a tensor as the box sees it: elements one after another, without dimensions."""

import torch

from ..errors import InvalidArgument


def memory_order(tensor):
    """Returns the dimensions of a dense tensor from the outermost in memory to the innermost,
    without those of size 1. They are (0, 2, 3, 1) for a channels_last image."""
    order = sorted((dimension for dimension in range(tensor.dim()) if tensor.shape[dimension] > 1),
                   key=tensor.stride, reverse=True)
    elements = 1
    for dimension in reversed(order):
        if tensor.stride(dimension) != elements:
            raise InvalidArgument(f"a tensor of shape {tuple(tensor.shape)} and strides "
                                  f"{tensor.stride()} has gaps or overlaps in memory: use a copy "
                                  "of its own, tensor.clone()")
        elements *= tensor.shape[dimension]
    return tuple(order)


def flat(tensor):
    """Returns a view of a dense tensor's elements in the order of memory."""
    memory_order(tensor)
    return tensor.as_strided((tensor.numel(),), (1,))


def name_with_order(name, tensor):
    """Returns the tensor's name in the job. Ranks that keep a parameter in different orders would
    mix up its elements, so the name states any order other than that of the shape."""
    order = memory_order(tensor)
    if order == tuple(sorted(order)):
        return name
    return f"{name} in order {','.join(map(str, order))}"


def like(gradient, parameter):
    """Returns the gradient in the parameter's order of memory, as a copy if its own differs."""
    if gradient.stride() == parameter.stride():
        return gradient
    ordered = torch.empty_strided(parameter.shape, parameter.stride(), dtype=parameter.dtype,
                                  device=parameter.device)
    return ordered.copy_(gradient)

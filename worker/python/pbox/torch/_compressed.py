"""The gradients of DistributedDataParallel as compressed tensors, one for each parameter. They are
the same whatever buckets DDP makes."""

import functools

from ..client import Client
from ..errors import InvalidArgument
from ._device import common_device
from ._lane import Lane


class ParameterLane(Lane):
    """A job in mode aggregate, whose tensors are a model's parameters. Those of one dimension, such
    as biases and norms, and small ones travel as they are."""

    def __init__(self, model, depth, options):
        self._named = [(name, parameter) for name, parameter in model.named_parameters()
                       if parameter.requires_grad and parameter.numel() > 0]
        self._tensors = {}  # by the parameter's id; the model keeps the parameters
        super().__init__(depth, options)

    def make_client(self, options):
        client = Client(mode="aggregate", reduction="mean", **options)
        for index, (name, parameter) in enumerate(self._named):
            self._tensors[id(parameter)] = client.register(
                name, _flat(parameter.detach()), -index,
                compression="none" if parameter.dim() < 2 else None)
        return client

    def start(self, operation, plan):
        exchanges = [(self._tensors[id(parameter)], gradient)
                     for parameter, gradient in zip(plan.parameters, plan.tensors)]
        if not exchanges:
            return
        self.client.push_pull_many(exchanges, callback=operation.part_ended)
        operation.parts += [functools.partial(self.client.wait, tensor) for tensor, _ in exchanges]


class BucketPlan:
    """Presents a bucket to Channel.start() as one part, which is exchanged in place."""

    def __init__(self, bucket):
        filled = [(parameter, _flat(gradient))
                  for parameter, gradient in zip(bucket.parameters(), bucket.gradients())
                  if gradient.numel() > 0]
        self.parameters = [parameter for parameter, _ in filled]
        self.tensors = [gradient for _, gradient in filled]
        self.calls = [bucket.index()] if filled else []
        self.finish = None
        if common_device(self.tensors) is not None:
            raise InvalidArgument("compressed gradients must be in host memory; leave compression "
                                  "out, or move the model to the CPU")


def _flat(tensor):
    """Returns the elements of a tensor without gaps, in the order of its memory."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())

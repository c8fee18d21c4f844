"""A DistributedDataParallel communication hook: the box averages the gradients."""

import functools
import os
import warnings
from typing import Optional

import torch
import torch.distributed as dist

from ..client import Client
from ..errors import PboxError, ResourceExhausted, SystemFailure
from ._channel import Channel
from ._compressed import BucketPlan, ParameterLane
from ._device import common_device
from ._plan import Plan
from ._ranks import with_process_group

_ADVICE = ("This rank has left the job, because its gradients and the others' can no longer be "
           "matched: restart all ranks from a checkpoint")


class DDPCommHook:
    """Averages the gradients of a DistributedDataParallel model on the box.

        hook = pbox.torch.DDPCommHook(ddp_model)
        ddp_model.register_comm_hook(None, hook)

    Takes the options of pbox.Client. Rank and world size default to those of DDP's process group.
    DDP itself still needs that group; gloo suffices, since no gradient passes through it. The
    constructor joins the job, so it returns when every rank has called it. Each bucket is one
    operation. Later buckets, those of the first layers, have the higher priority.

    With `compression` "q8", "q4" or "auto" gradients and means travel in fewer bits, with error
    feedback (docs/compression.md). Each parameter of float32 is then a tensor of its own.
    Parameters of one dimension, or of less than 4096 elements ("auto": 65,536), travel as they are.
    Gradients must be in host memory.

    DDP starts the next forward when every bucket is back, whatever the priorities. If each layer's
    forward should wait for that layer alone, use DistributedOptimizer.

    A failed exchange fails backward() with a RuntimeError that has the same text; `last_error` is
    the error itself.

    The first failure, a Timeout too, ends the job on this rank. The other ranks may have received
    the result that this rank has not, so a step that is run again would be matched with their next
    one, and the replicas would differ. The hook leaves the job, every later backward() fails with
    the same error, and the other ranks fail as soon as they need this one. Restart all ranks from a
    checkpoint.
    """

    def __init__(self, model: torch.nn.Module, **options: object) -> None:
        # DistributedDataParallel reads both names of a hook.
        self.__name__ = self.__qualname__ = type(self).__name__
        compression = options.get("compression") or os.environ.get("PBOX_COMPRESSION")
        self._is_compressed = (compression or "none") != "none"
        if self._is_compressed:
            options["make_lane"] = functools.partial(ParameterLane, model)
        self._channel = Channel(None, _ADVICE, **with_process_group(model, options))
        self._memory = BucketMemory(self.client)

    @property
    def client(self) -> Client:
        """The pbox.Client."""
        return self._channel.client

    @property
    def last_error(self) -> Optional[PboxError]:
        """The failure that has ended the job on this rank, or None."""
        return self._channel.failure

    # DDP checks the second parameter's name and both annotations.
    def __call__(self, state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Starts the exchange of one bucket, in place. Never raises, because DDP would then fail in
        an assertion in the next backward()."""
        try:
            return self._start(bucket).future()
        except Exception as error:  # pylint: disable=broad-except; the Future has to carry it
            self._channel.fail(error)
            return self._channel.failed().future()

    def _start(self, bucket):
        buffer = bucket.buffer()
        if self._is_compressed:
            return self._channel.start(BucketPlan(bucket), value=buffer)
        plan = Plan(self.client.rank, self.client.world_size)
        plan.all_reduce(buffer, dist.ReduceOp.AVG, priority=bucket.index())
        # On a device the memory that the port reads is libpbox's, which registers it.
        if self._channel.error is None and common_device(plan.tensors) is None:
            self._memory.register(bucket)
        return self._channel.start(plan, value=buffer)

    def close(self) -> None:
        """Leaves the job, after which gradients cannot be exchanged. May be called again."""
        self._channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class BucketMemory:
    """Registers each bucket's memory with the client once, for as long as DDP uses the bucket."""

    def __init__(self, client):
        self._client = client
        self._buffers = {}  # by address; kept, so that no other buffer can get the address
        self._used = set()  # in this backward()
        self._refused = False

    def register(self, bucket):
        """Registers a bucket's memory. Call it before its gradients are pushed."""
        buffer = bucket.buffer()
        self._used.add(buffer.data_ptr())
        # A bucket without elements has no memory.
        if buffer.numel() > 0 and buffer.data_ptr() not in self._buffers and not self._refused:
            self._add(buffer)
        if bucket.is_last():
            self._drop_unused()

    def _add(self, buffer):
        try:
            self._client.register_memory(buffer)
        except (ResourceExhausted, SystemFailure) as error:
            self._refused = True
            warnings.warn("gradient buckets are copied before they are sent, which is slower, "
                          f"because the device cannot read them in place: {error}")
            if isinstance(error, ResourceExhausted):
                return
        # Memory that the device has refused must be unregistered too.
        self._buffers[buffer.data_ptr()] = buffer

    def _drop_unused(self):
        """Unregisters buckets that were not used: DDP replaces them after its first backward()."""
        for address in self._buffers.keys() - self._used:
            self._client.unregister_memory(self._buffers.pop(address))
        self._used.clear()


def attach(ddp_model: torch.nn.parallel.DistributedDataParallel,
           **options: object) -> DDPCommHook:
    """Makes a DDPCommHook for the model, registers it, and returns it."""
    hook = DDPCommHook(ddp_model, **options)
    ddp_model.register_comm_hook(None, hook)
    return hook

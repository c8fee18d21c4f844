"""A DistributedDataParallel communication hook: the box averages the gradients."""

import atexit
import collections
import contextlib
import threading
import time
import warnings

import torch
import torch.distributed as dist

from ..client import Client
from ..errors import InvalidArgument, PboxError, ResourceExhausted, SystemFailure, Timeout
from ._ranks import with_process_group

_WATCH_PERIOD_MAX_S = 0.5
_RESTART = ("This rank has left the job, because its gradients and the others' can no longer be "
            "matched: restart all ranks from a checkpoint")


class DDPCommHook:
    """Averages the gradients of a DistributedDataParallel model on the box.

        hook = pbox.torch.DDPCommHook(ddp_model)
        ddp_model.register_comm_hook(None, hook)

    Takes the options of pbox.Client. Rank and world size default to those of DDP's process group.
    DDP itself still needs that group; gloo suffices, since no gradient passes through it. Making
    the hook joins the job, so it returns when every rank has come here. Every parameter that
    requires a gradient is one tensor of the job, under its name in the model. The first layer has
    the highest priority.

    DDP starts the next forward when every bucket is back, whatever the priorities. If each layer's
    forward should wait for that layer alone, use DistributedOptimizer.

    Gradients are float32, float16 or bfloat16 in host memory. A bucket on a GPU fails with an error
    that says so. A failed exchange fails backward() with a RuntimeError that has the same text;
    `last_error` is the error itself.

    The first failure, a Timeout too, ends the job on this rank. The other ranks may have received
    the result that this rank has not, so a step that is run again would be matched with their next
    one, and the replicas would differ. The hook leaves the job, every later backward() fails with
    the same error, and the other ranks fail as soon as they need this one. Restart all ranks from a
    checkpoint.
    """

    def __init__(self, model, **options):
        # DistributedDataParallel asks a hook for both names.
        self.__name__ = self.__qualname__ = type(self).__name__
        self.last_error = None
        self.client = Client(mode="aggregate", reduction="mean",
                             **with_process_group(model, options))
        try:
            self._tensors = self._register(getattr(model, "module", model))
            self.client.join()
        except BaseException:
            self.client.close()
            raise
        self._memory = BucketMemory(self.client)
        self._exchanges = collections.deque()
        self._failure_lock = threading.Lock()
        self._wake = threading.Event()  # set when the hook has failed or is closed
        self._closing = False
        self._watch_thread = threading.Thread(target=self._watch, name="pbox-watch", daemon=True)
        self._watch_thread.start()
        atexit.register(self.close)

    def _register(self, module):
        # named_parameters() lists a shared parameter once, like DDP.
        parameters = [(name, parameter) for name, parameter in module.named_parameters()
                      if parameter.requires_grad]
        # An id is unique only while its object lives, so the parameters are kept.
        self._parameters = [parameter for _, parameter in parameters]
        # DDP's buckets have gradients in the parameters' order of memory, the same on every rank.
        return {id(parameter): self.client.register(name, parameter.detach().reshape(-1),
                                                    priority=len(parameters) - position)
                for position, (name, parameter) in enumerate(parameters) if parameter.numel() > 0}

    # DDP checks the second parameter's name and both annotations.
    def __call__(self, state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Starts the exchange of one bucket, in place. Never raises, because DDP would then fail in
        an assertion in the next backward()."""
        exchange = _Exchange(bucket.buffer(), self)
        try:
            self._start(exchange, bucket)
        except Exception as error:  # the Future has to carry any error
            exchange.finish(error)
        return exchange.future

    def _start(self, exchange, bucket):
        if self.last_error is not None:
            raise self.last_error
        pairs = [(self._tensor(parameter), gradient) for parameter, gradient
                 in zip(bucket.parameters(), bucket.gradients()) if parameter.numel() > 0]
        if not pairs:
            return exchange.finish()
        exchange.expect([tensor for tensor, _ in pairs],
                        time.monotonic() + self.client.wait_timeout_ms / 1000)
        self._memory.register(bucket)
        self._exchanges.append(exchange)
        self.client.push_pull_many(pairs, callback=exchange.ended)

    def _tensor(self, parameter):
        tensor = self._tensors.get(id(parameter))
        if tensor is None:
            raise InvalidArgument(
                f"a parameter of shape {tuple(parameter.shape)} was not in the model, or did not "
                "require a gradient, when the hook was made: make the hook from this model")
        return tensor

    def _watch(self):
        """Ends every exchange whose deadline has passed. An operation that waits for a straggler
        ends by itself only if the job fails, and backward() would wait for ever. After the first
        failure it leaves the job; an I/O thread that reports a failure cannot do so itself."""
        period_s = min(_WATCH_PERIOD_MAX_S, self.client.wait_timeout_ms / 4000)
        while not self._wake.wait(period_s):
            while self._exchanges and self._exchanges[0].done:
                self._exchanges.popleft()
            # All deadlines are equally long, so the oldest exchange is the first to miss its own.
            if self._exchanges and time.monotonic() > self._exchanges[0].deadline:
                self.fail(self._late(self._exchanges[0]))
        if not self._closing:
            # Ends what is in flight, so that no bucket is read or written afterwards.
            with contextlib.suppress(PboxError):  # the application may have closed the client
                self.client.leave()
            for exchange in tuple(self._exchanges):
                exchange.finish(self.last_error)

    def fail(self, error):
        """Notes a failure of an exchange. Returns the error that the exchange has to raise."""
        with self._failure_lock:
            if self.last_error is None:
                text = f"{error}. {_RESTART}"
                self.last_error = (type(error)(text, error.status) if isinstance(error, PboxError)
                                   else PboxError(f"{type(error).__name__}: {text}"))
            self._wake.set()
            return self.last_error

    def _late(self, exchange):
        """Returns the error that names the rank or box that is late."""
        for tensor in exchange.tensors:
            try:
                self.client.wait(tensor, timeout_ms=1)
            except Timeout as error:
                return Timeout(str(error).replace(
                    " after 1 ms", f" after {self.client.wait_timeout_ms} ms", 1))
            except PboxError as error:
                return error
        return Timeout(f"no result for {exchange.tensors[0].name} and the rest of its bucket "
                       f"after {self.client.wait_timeout_ms} ms")

    def close(self):
        """Leaves the job, after which gradients cannot be exchanged. May be called again."""
        atexit.unregister(self.close)
        self._closing = True
        self._wake.set()
        if self._watch_thread is not threading.current_thread():
            self._watch_thread.join()
        self.client.close()

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
        if buffer.data_ptr() not in self._buffers and not self._refused:
            self._add(buffer)
        if bucket.is_last():
            self._drop_unused()

    def _add(self, buffer):
        try:
            self._client.register_memory(buffer)
        except (ResourceExhausted, SystemFailure) as error:
            self._refused = True
            warnings.warn(f"gradients are copied for the device, which is slower: {error}")
            if isinstance(error, ResourceExhausted):
                return
        # Memory that the device has refused must be unregistered too.
        self._buffers[buffer.data_ptr()] = buffer

    def _drop_unused(self):
        """Unregisters buckets that were not used: DDP replaces them after its first backward()."""
        for address in self._buffers.keys() - self._used:
            self._client.unregister_memory(self._buffers.pop(address))
        self._used.clear()


class _Exchange:
    """One bucket in flight. Its Future ends once: when the bucket is back, or with the first
    error."""

    def __init__(self, buffer, hook):
        self.tensors = []
        self.deadline = None
        self.done = False
        self._buffer = buffer
        self._hook = hook
        self._error = None
        self._lock = threading.Lock()
        self._ended = torch.futures.Future()
        # An error that a continuation raises keeps its text on its way through DDP. One passed to
        # set_exception would arrive as a failed cast to a tensor.
        self.future = self._ended.then(self._result)

    def expect(self, tensors, deadline):
        """Sets the tensors that have to come back. Call it before anything is sent."""
        self.tensors = tensors
        self.deadline = deadline

    def ended(self, _, error):
        """Ends the Future. Called once on libpbox's I/O thread."""
        self.finish(error)

    def finish(self, error=None):
        """Ends the Future if it has not ended yet."""
        with self._lock:
            if self.done:
                return
            self.done = True
        if error is not None:
            self._error = self._hook.fail(error)
        self._ended.set_result(None)

    def _result(self, _):
        if self._error is not None:
            raise self._error
        return self._buffer


def attach(ddp_model, **options):
    """Makes a DDPCommHook for the model, registers it, and returns it."""
    hook = DDPCommHook(ddp_model, **options)
    ddp_model.register_comm_hook(None, hook)
    return hook

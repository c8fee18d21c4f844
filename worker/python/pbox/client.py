"""Client: the calls of libpbox for Python, over ctypes."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Optional

from . import _buffer, _library, _options
from ._collective import collective_arguments
from ._compression import CompressionCalls
from ._cuda_calls import CudaCalls
from ._exit import at_exit
from ._optimizer_calls import OptimizerCalls
from ._table import TableCalls, row_elements
from .errors import (Closed, Forked, InvalidArgument, PboxError, SystemFailure, VersionMismatch,
                     error_for)

# A contiguous torch tensor in host memory, or a numpy array: the package imports neither.
Buffer = Any
_NO_CALLBACK = _library.CALLBACK()
# After leave() every call of another thread ends at once. If one has not ended after this time,
# close() does not free the context.
_CALLS_END_S = 10

# Called with the tensor, and None or the error, on libpbox's I/O thread.
TensorCallback = Callable[["Tensor", Optional[PboxError]], None]

# Strong references to all open clients. Client has no __del__. Otherwise a client whose last
# reference is dropped by a callback would be destroyed on its own I/O thread.
_open_clients: set[Client] = set()


@at_exit
def _close_all():
    # A callback into an interpreter that is shutting down would abort the process.
    for client in list(_open_clients):
        client.close()


class Tensor:
    """A registered tensor: its id, and the element count and dtype of its buffers. `row_elements`:
    elements of a row, if it is a table; otherwise 0."""

    __slots__ = ("id", "name", "element_count", "dtype", "row_elements")

    def __init__(self, tensor_id: int, name: str, element_count: int, dtype: int,
                 row_elements: int = 0) -> None:
        self.id = tensor_id
        self.name = name
        self.element_count = element_count
        self.dtype = dtype
        self.row_elements = row_elements


class Client(CompressionCalls, CudaCalls, OptimizerCalls, TableCalls):
    """One rank of a job. Options that are not given come from the environment: PBOX_BOX, PBOX_JOB,
    PBOX_PORT, PBOX_RANK or RANK, PBOX_WORLD_SIZE or WORLD_SIZE, PBOX_CHUNK_BYTES,
    PBOX_WINDOW_BYTES, PBOX_JOIN_TIMEOUT_MS, PBOX_WAIT_TIMEOUT_MS, PBOX_RECOVERY,
    PBOX_RECOVER_TIMEOUT_MS, PBOX_ON_WORKER_LOST, PBOX_REJOIN, PBOX_PRIORITY_POLICY, PBOX_DELIVERY,
    PBOX_SYNC, PBOX_STALENESS, PBOX_SYNC_PROBABILITY, PBOX_RELEASE, PBOX_READS, PBOX_QUORUM,
    PBOX_GRACE_MS, PBOX_LATE_PUSHES, PBOX_RESTORE, PBOX_NUMERICS, PBOX_REPLICAS, PBOX_KEYS,
    PBOX_GUARD, PBOX_GUARD_MAX_ABS, PBOX_COLLECTIVE_BYTES, PBOX_MIN_WORLD_SIZE, PBOX_COMPRESSION.
    pbox.h and docs/pytorch.md explain all options. In short:

    `port`: what carries packets. "auto", "socket", "shm", or "KIND:ARGUMENTS" of the library
    libpbox_KIND.so.1, for example "dpdk:DEVICE".
    `recovery`: what happens when the box is lost. "copy" searches for the box or its successor for
    recover_timeout_ms and continues; it takes memory for one more copy of the model, two with mode
    "optimize". "none" fails.
    `on_worker_lost`: the other ranks wait lost_timeout_ms for a lost rank, and then fail ("wait")
    or continue without it ("partial"); or they fail at once ("abort").
    `rejoin`: take the place of a rank that a running job has lost.
    `min_world_size`: the job begins with this many ranks, and the others may join while it runs.
    Needs on_worker_lost "partial".
    `priority_policy`: tensors are sent by their registered priority ("explicit"); in the order that
    rank 0 learns in the first round of gradients ("forward-order": the tensor started last is
    needed first); or in the order of the calls ("fifo").
    `delivery`: the box sends results without being asked ("broadcast"); or announces them, and they
    are pulled tensor by tensor ("pull", for comparison with other parameter servers).
    `numerics`: values are added as they arrive ("fast"), or in the order of ranks ("ordered"). The
    latter gives the same bits in every run and costs the box memory for all ranks' values.
    `guard`: what happens to infinities and NaNs that a rank pushes, and to values beyond
    `guard_max_abs`. They are counted, and reach the result ("flag"); each counts as 0 ("zero"); or
    ("reject") the job ends with an error that names the rank. With mode "optimize" the round is
    skipped instead.
    `compression`: gradients and results travel in 8.25 bits per value ("q8") or 4.25 ("q4"), with
    error feedback; only f32 tensors of at least 4096 elements. "auto": "q8", while that is faster,
    for tensors of at least 65,536 elements; mode "aggregate" only. See docs/compression.md.
    `weighted`: 1 means that pushes have weights, and means are divided by the sum of these instead
    of the number of ranks. With reduction "mean", and `sync` "bsp" or "drop".
    `replicas`: with mode "optimize" and several boxes, 1 keeps a replica of weights and optimizer
    state on another box, so that none of it is lost with a box. With `sync` "bsp" or "drop".
    `sync`: when a rank may continue without the others. "bsp" (the default); or, with mode
    "optimize" and recovery "none": "asp"; "ssp", "essp", "pssp", "dpssp" or "adaptive" (with
    `staleness`, and `sync_probability` for the last three); or "drop" (with `quorum`; `grace_ms`, a
    number or "auto"; and `late_pushes`, "drop" or "next"). See docs/consistency.md.
    `release`: when a rank that had to wait continues ("soft", "lazy").
    `reads`: whether weights are fetched in each exchange ("fresh") or only when the copy of them is
    too old ("cached"). There is a copy only with SGD without weight decay; with other optimizers
    "cached" means that a read waits for weights as new as the copy would have to be.
    `restore`: with mode "optimize", start with a snapshot of the job, "latest" or its number as a
    string. `statistics()["restored_steps"]` is the number of steps that its weights had taken; 0 if
    there was no snapshot.
    `collective_bytes`: with mode "collective", the memory of its slots; 0 means the default.

    `keys`: folder of keys that `pboxctl keys job` has made, or token of `pboxctl keys token`, for
    boxes that have keys. The job's name is then TENANT/NAME.

    Buffers are contiguous torch tensors in host memory or numpy arrays. The client keeps a
    reference to each until its operation is done. Any thread may call any method. A client lives
    until close(), the end of its `with` block, or the interpreter's exit; calls of other threads,
    daemon threads too, then end with Closed.

        with pbox.Client(rank=0, world_size=1) as client:
            gradient = client.register("gradient", array)
            client.join()
            client.push_pull(gradient, array)
            client.wait(gradient)
    """

    rank: int
    world_size: int

    def __init__(self, *, mode: str = "aggregate", reduction: str | None = None,
                 **options: Any) -> None:
        self._library = _library.load()
        self._process = os.getpid()
        self._context = None
        # Buffers that libpbox reads or writes stay referenced: by token while a callback is due,
        # otherwise by tensor id until the tensor is waited for or pushed again.
        self._operations = {}
        self._held = {}
        self._memory = {}  # registered buffers by address
        self._tokens = itertools.count(1)
        self._tensor_count = 0
        self._calls = threading.Condition()
        self._calls_running = 0
        self._trampoline = _library.CALLBACK(self._completed)
        self._collective_trampoline = _library.COLLECTIVE_CALLBACK(self._collective_ended)
        if reduction is None:  # in mode "collective" each operation has its own
            reduction = "sum" if mode == "collective" else "mean"
        filled = _options.fill(self._library, {**options, "mode": mode, "reduction": reduction})
        context = ctypes.c_void_p()
        status = self._library.pbox_create(ctypes.byref(filled), ctypes.byref(context))
        if status != 0:
            raise error_for(status, self._message())
        self._context = context
        self.rank = filled.rank
        self.world_size = filled.world_size
        self.wait_timeout_ms = filled.wait_timeout_ms or _options.WAIT_TIMEOUT_MS
        self.rejoin = filled.rejoin != 0 or 0 < filled.min_world_size < filled.world_size
        self.guard = _options.name_of(filled.guard, _options.GUARDS)
        self.compression = _options.name_of(filled.compression, _options.COMPRESSIONS)
        _open_clients.add(self)

    def register(self, name: str, like: Buffer, priority: int = 0, *,
                 table: bool = False, compression: str | None = None) -> Tensor:
        """Declares a tensor with the size and dtype of the buffer `like`. Call it before join, in
        the same order on every rank. A tensor with a larger `priority` is sent earlier. `table`:
        like[i] is a row, and push_pull_rows() pushes some of them; with mode "optimize".
        `compression` replaces the client's for this tensor, whatever its size. Returns the Tensor
        that the other methods take."""
        _, element_count, dtype = _buffer.describe(like, name, on_device=True)
        tensor_id = ctypes.c_uint32()
        self._call(self._library.pbox_register_tensor, name.encode(), element_count, dtype,
                   _options.priority(priority), ctypes.byref(tensor_id))
        self._tensor_count = tensor_id.value + 1
        rows = row_elements(like, name) if table else 0
        if table:
            self._call(self._library.pbox_set_tensor_rows, tensor_id.value, rows)
        if compression is not None:
            self._set_compression(tensor_id.value, compression)
        return Tensor(tensor_id.value, name, element_count, dtype, rows)

    def join(self) -> None:
        """Joins the job. Returns when every rank has joined."""
        self._call(self._library.pbox_join)

    def tensor_round(self, tensor: Tensor) -> int:
        """Returns the round of the tensor's next operation: 0 in a new job. A process that rejoins
        uses it to set its own state to the job's progress."""
        return self._number(self._library.pbox_tensor_round, tensor)

    def contributors(self, tensor: Tensor) -> int:
        """Returns how many ranks contributed to the tensor's last result, the minimum over its
        chunks; 0 before the first result. Below world_size only with on_worker_lost="partial"."""
        return self._number(self._library.pbox_contributors, tensor)

    def push_pull(self, tensor: Tensor, gradient: Buffer, result: Buffer = None, *,
                  priority: int | None = None, weight: float = 0,
                  callback: TensorCallback | None = None) -> None:
        """Starts one exchange. `gradient` goes to the box; the sum, the mean or the new weights
        are written into `result`, by default into `gradient`. One exchange at a time per tensor.

        `weight`: in a weighted job, how much the gradient counts, as round_weight() has returned
        it. The caller has multiplied the gradient by it.

        `callback(tensor, error)` is called once on the I/O thread, with None or a PboxError. A wait
        may return before that. It must be short and must not wait."""
        result = gradient if result is None else result
        operation = _library.Operation(
            input=self._address(tensor, gradient, writable=False),
            output=self._address(tensor, result, writable=True), tensor_id=tensor.id,
            priority=_options.priority(priority or 0), has_priority=priority is not None,
            weight=weight)
        self._exchange([operation], [tensor], [(gradient, result)], callback)

    def push_pull_many(self, exchanges: Sequence[tuple[Tensor, Buffer]],
                       callback: TensorCallback | None = None) -> None:
        """Starts several exchanges with one call: `exchanges` is a list of (tensor, gradient), like
        those of push_pull, and the results are written into the gradients. After an error none was
        started.

        `callback(tensor, error)` is called once on the I/O thread, when all of them have ended:
        with None and the first tensor, or with the first tensor that has failed and a PboxError."""
        operations = []
        for tensor, gradient in exchanges:
            address = self._address(tensor, gradient, writable=True)
            operations.append(_library.Operation(input=address, output=address,
                                                 tensor_id=tensor.id))
        self._exchange(operations, [tensor for tensor, _ in exchanges],
                       [(gradient,) for _, gradient in exchanges], callback)

    def round_weight(self, weight: float) -> float:
        """Returns the weight nearest to `weight`, at least 1, that push_pull() can state: whole
        numbers up to 256 as they are, larger ones within 1/256. Multiply the gradient by it."""
        rounded = self._library.pbox_round_weight(weight)
        if rounded == 0:
            raise InvalidArgument(f"weight is {weight}: it must be at least 1 and at most 2.7e11")
        return rounded

    def alloc(self, byte_count: int) -> memoryview:
        """Returns memory, filled with zeros, for inputs and outputs of operations: a box on this
        host reads inputs there in place, over port shm. Use torch.frombuffer() or
        numpy.frombuffer() to make a tensor of it. It lives as long as something refers to it, also
        after close(). Call it after join."""
        address = ctypes.c_void_p()
        self._call(self._library.pbox_alloc, byte_count, ctypes.byref(address))
        memory = (ctypes.c_ubyte * byte_count).from_address(address.value)
        free = weakref.finalize(memory, self._library.pbox_free, address.value)
        free.atexit = False  # at exit libpbox's thread may still use the memory
        return memoryview(memory).cast("B")

    def register_memory(self, buffer: Buffer) -> None:
        """Registers a long-lived buffer that holds one or more gradients. The device of an rdma
        port then reads them in place, without a copy. It has no effect on other ports. Call it
        after join.

        The client keeps the buffer until unregister_memory(buffer) or close(). It must not be
        resized. SystemFailure: the device refuses the buffer. Payloads are then copied as before,
        and the buffer still has to be unregistered."""
        address, element_count, dtype = _buffer.describe(
            buffer, known=_buffer.COLLECTIVE_DTYPES)
        try:
            self._call(self._library.pbox_register_memory, address,
                       element_count * _buffer.BYTES[dtype])
        except SystemFailure:
            self._memory[address] = buffer
            raise
        self._memory[address] = buffer

    def unregister_memory(self, buffer: Buffer) -> None:
        """Unregisters a buffer. Once this returns, no device reads it. Operations go on with
        copies."""
        address, _, _ = _buffer.describe(buffer, known=_buffer.COLLECTIVE_DTYPES)
        self._call(self._library.pbox_unregister_memory, address)
        del self._memory[address]

    def init_weights(self, tensor: Tensor, weights: Buffer,
                     callback: TensorCallback | None = None) -> None:
        """Mode "optimize": starts to send the initial weights. Rank 0's weights count; every rank
        receives them in `weights`. A rank that rejoins receives the current weights."""
        address = self._address(tensor, weights, writable=True)
        self._start(tensor, (weights,), callback, self._library.pbox_init_weights, address)

    def wait(self, tensor: Tensor, timeout_ms: int = 0) -> None:
        """Waits for the tensor's operation. timeout_ms 0 means the option wait_timeout_ms. After a
        Timeout the operation continues and can be waited for again."""
        held = self._held.get(tensor.id)
        self._call(self._library.pbox_wait, tensor.id, _options.milliseconds(timeout_ms))
        if held is not None and self._held.get(tensor.id) is held:
            del self._held[tensor.id]

    def wait_all(self, timeout_ms: int = 0) -> None:
        """Waits for every operation in flight."""
        self._call(self._library.pbox_wait_all, _options.milliseconds(timeout_ms))

    def collective(self, verb: str, input: Buffer = None, output: Buffer = None, *,
                   op: str = "sum", root: int = 0, priority: int = 0,
                   callback: Callable[[int, PboxError | None], None] | None = None) -> int:
        """Mode "collective": starts a collective, and returns the number of this operation. It is
        matched with the same number of every other rank; the numbers follow the order of the calls.

        `verb`: "all_reduce" and "broadcast" (from `root`) write into `output`, by default into
        `input`; "all_gather" into `output` of world_size times as many elements; "reduce_scatter"
        takes world_size times as many; "barrier" has no buffers. `op`: "sum", "mean" (floating
        point only), "min" or "max".

        `callback(operation, error)` is called once on the I/O thread, like that of push_pull."""
        output = input if output is None else output
        call = collective_arguments(verb, input, output, op, root, priority, self.world_size)
        number = ctypes.c_uint64()
        token = next(self._tokens)
        self._operations[token] = (input, output), callback
        try:
            self._call(self._library.pbox_collective, *call, self._collective_trampoline, token,
                       ctypes.byref(number))
        except PboxError:
            del self._operations[token]
            raise
        return number.value

    def wait_collective(self, operation: int, timeout_ms: int = 0) -> None:
        """Waits for an operation of collective(). For timeout_ms see wait()."""
        self._call(self._library.pbox_wait_collective, operation, _options.milliseconds(timeout_ms))

    def set_priorities(self, policy: str = "explicit",
                       by_tensor: Sequence[int] | None = None) -> None:
        """Changes the job's priority policy for all ranks; one rank's call is enough. `by_tensor`,
        with "explicit" only, has one priority per registered tensor, in order; the default is the
        registered ones. "forward-order" learns the order again. After a following barrier() every
        rank uses the change for the operations that it starts."""
        numbers = None
        if by_tensor is not None:
            if len(by_tensor) != self._tensor_count:
                raise InvalidArgument(f"by_tensor has {len(by_tensor)} priorities; "
                                      f"{self._tensor_count} tensors are registered")
            numbers = (ctypes.c_int32 * len(by_tensor))(*map(_options.priority, by_tensor))
        code = _options.choice("policy", policy, _options.PRIORITY_POLICIES)
        self._call(self._library.pbox_set_priorities, code, numbers)

    def set_sync(self, sync: str, tensors: str | None = None) -> None:
        """Sets the consistency model of the tensors whose names match the pattern `tensors`, with *
        and ?; None means all. `sync` is the model with its values, written as in
        docs/consistency.md.
        Before join() every rank must make the same calls, after it has registered the tensors.
        After join() one rank's call is enough, and returns when every box uses the model.
        InvalidArgument: no tensor matches, or the model is not possible; the message says why."""
        self._call(self._library.pbox_set_sync, tensors.encode() if tensors else None,
                   sync.encode())

    def barrier(self, timeout_ms: int = 0) -> None:
        """Returns when every rank that is still in the job has called it."""
        self._call(self._library.pbox_barrier, _options.milliseconds(timeout_ms))

    def statistics(self) -> dict[str, Any]:
        """Returns the counters since join, by the names of pbox_statistics."""
        filled = _library.Statistics(struct_size=ctypes.sizeof(_library.Statistics))
        self._call(self._library.pbox_get_statistics, ctypes.byref(filled))
        size = ctypes.sizeof(_library.Statistics)
        if filled.struct_size < size:
            raise VersionMismatch(
                f"pbox_statistics has {filled.struct_size} bytes in libpbox, but this package "
                f"needs {size}: install the package and the library of the same release")
        counters = {name: getattr(filled, name) for name, _ in filled._fields_[1:]}
        return {**counters, "reads_by_staleness": list(filled.reads_by_staleness)}

    def leave(self) -> None:
        """Leaves the job. Operations in flight end with Closed."""
        self._call(self._library.pbox_leave)

    def close(self) -> None:
        """Leaves the job, joins the I/O thread and frees everything. May be called again.
        InvalidArgument: a callback has called it; the client stays open."""
        # A forked child has no I/O thread, so there is nothing to join. Its copy of the lock may be
        # held by a thread that the child does not have.
        if os.getpid() != self._process:
            _open_clients.discard(self)
            self._context = None
            return
        with self._calls:
            context, self._context = self._context, None
        if context is None:
            return
        status = self._library.pbox_leave(context)
        if status != 0:  # in a callback, on the thread that pbox_destroy() would have to join
            error = error_for(status, self._message())
            with self._calls:
                self._context = context
            raise error
        _open_clients.discard(self)
        # A thread that pbox_leave() has just woken still reads the context.
        with self._calls:
            if not self._calls.wait_for(lambda: self._calls_running == 0, _CALLS_END_S):
                return
        self._library.pbox_destroy(context)
        self._operations.clear()
        self._held.clear()
        self._memory.clear()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _number(self, function, tensor):
        number = ctypes.c_uint32()
        self._call(function, tensor.id, ctypes.byref(number))
        return number.value

    def _open(self):
        if self._context is None:
            raise Closed("the client is closed")
        if os.getpid() != self._process:
            raise Forked(f"this client belongs to process {self._process}, its parent: make "
                         "another Client in the forked child")
        return self._context

    def _address(self, tensor, buffer, writable):
        return self._checked_address(tensor, _buffer.describe(buffer, tensor.name, writable))

    @staticmethod
    def _checked_address(tensor, described):
        address, element_count, dtype = described
        if element_count != tensor.element_count or dtype != tensor.dtype:
            raise InvalidArgument(
                f"{tensor.name} was registered as {tensor.element_count} elements of "
                f"{_buffer.NAMES[tensor.dtype]}, but this buffer holds {element_count} of "
                f"{_buffer.NAMES[dtype]}")
        return address

    def _start(self, tensor, buffers, callback, function, *arguments):
        if callback is None:
            self._call(function, tensor.id, *arguments, _NO_CALLBACK, None)
            self._held[tensor.id] = buffers
            return
        self._start_with_callback({tensor.id: tensor}, buffers, callback,
                                  function, tensor.id, *arguments)

    def _exchange(self, operations, tensors, buffers, callback):
        arguments = ((_library.Operation * len(operations))(*operations),
                     ctypes.sizeof(_library.Operation), len(operations))
        function = self._library.pbox_push_pull_many_sized
        if callback is not None:
            return self._start_with_callback({tensor.id: tensor for tensor in tensors}, buffers,
                                             callback, function, *arguments)
        self._call(function, *arguments, _NO_CALLBACK, None)
        self._held.update(zip((tensor.id for tensor in tensors), buffers))

    def _start_with_callback(self, tensors, buffers, callback, function, *arguments):
        # Stored before the call, because the callback may run before the call returns.
        token = next(self._tokens)
        self._operations[token] = tensors, buffers, callback
        try:
            self._call(function, *arguments, self._trampoline, token)
        except PboxError:
            del self._operations[token]
            raise

    def _completed(self, token, tensor_id, status):
        tensors, _, callback = self._operations.pop(token)
        callback(tensors[tensor_id], self._callback_error(status))

    def _collective_ended(self, token, operation, status):
        _, callback = self._operations.pop(token)
        if callback is not None:
            callback(operation, self._callback_error(status))

    def _call(self, function, *arguments):
        """Calls a function of libpbox, and raises if it fails. The context outlives the call."""
        self._open()  # before the lock, which a forked child must not take
        with self._calls:
            context = self._open()
            self._calls_running += 1
        try:
            status = function(context, *arguments)
            if status != 0:
                raise error_for(status, self._message())
        finally:
            with self._calls:
                self._calls_running -= 1
                if self._context is None:
                    self._calls.notify_all()

    def _message(self):
        """Returns the text of the calling thread's last failure. The context's text may belong to
        another thread."""
        return self._library.pbox_last_error(None).decode(errors="replace")

    def _callback_error(self, status):
        """Returns the error of a callback, or None. Only the context has the text of a failure that
        no call has returned."""
        if status == 0:
            return None
        context = self._context
        text = (self._library.pbox_last_error(context) if context is not None
                else self._library.pbox_status_string(status))
        return error_for(status, text.decode(errors="replace"))

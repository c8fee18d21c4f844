"""Runs the collectives of one job in the order of the calls, each with a deadline and a future."""

import collections
import os
import queue
import threading
import time
import traceback
import weakref

import torch

from .._exit import at_exit
from ..errors import Closed, InvalidArgument, PboxError, Timeout
from . import _depth
from ._device import common_device
from ._lane import Lane

_thread = threading.local()  # in_callback: True on libpbox's I/O threads

# Threads that end futures. They run torch's code without Python's lock. If one asks for the lock
# after the interpreter has shut down, Python ends the thread there. torch's code cannot be left in
# that way, so the process aborts. To avoid that, the process waits for these threads before it
# exits, at most this time.
_delivery_threads = weakref.WeakSet()
_DELIVERIES_END_S = 10
# When the watch looks again at a late operation that it cannot end yet.
_LOOK_AGAIN_S = 1


def _possible(timeout_s):
    """Returns the time, or the longest that Python can wait. None means without an end."""
    return None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)


class Operation:
    """Collectives that were started together and end together.

    `value` is what the future returns. `finish`, if any, runs on the I/O thread when the last
    collective has ended, before waits and the future end.

    An operation on a device is done when its results are in host memory. The copy back and `finish`
    are queued on a stream from the start, in front of `event`, so no thread waits for them.
    """

    def __init__(self, channel, part_count, finish, value, timeout_s):
        self.error = None
        self.value = value
        self.device = None  # one of _device.classes
        self.event = None
        self.parts = []  # for each part that was started: a function that waits for its end
        self.timeout_s = timeout_s = _possible(timeout_s)
        self.deadline = time.monotonic() + timeout_s
        self.done = threading.Event()
        self.depth = _depth.current()
        self._channel = channel
        self._missing = part_count
        self._finish = finish
        self._lock = threading.Lock()
        self._future = None
        self._waited = False

    def part_ended(self, _, error):
        """Called once for each collective, on the I/O thread. For a device the thread pbox-device
        calls it, because the I/O thread must not wait for Python's lock: the lock's holder may be
        in a call of CUDA that waits for the streams, and the streams wait for the I/O thread."""
        _thread.in_callback = True
        if error is not None:
            self.end(self._channel.fail(error))
            return
        with self._lock:
            self._missing -= 1
            if self._missing > 0:
                return
        self.end(self._run_finish())

    def _run_finish(self):
        if self._finish is None or self.done.is_set():
            return None
        try:
            # Tensors that the caller made under inference_mode() may only be written under it.
            with torch.inference_mode():
                self._finish()
        except Exception as error:  # pylint: disable=broad-except; an I/O thread must not raise
            return self._channel.fail(error)
        return None

    def end(self, error=None):
        """Ends the operation if it has not ended yet."""
        with self._lock:
            if self.done.is_set():
                return
            self.error = error
            self._finish = None
            self.done.set()
        self._channel.ended(self)

    def take_results_behind(self, finish):
        """On a device: queues `finish` behind the copies back, and marks the end of both."""
        if finish is not None:
            with torch.inference_mode():
                self.device.run_behind(finish)
        self.event = self.device.mark()

    def is_done(self):
        """Returns whether the operation has ended, and the device has passed it."""
        return self.done.is_set() and (self.event is None or self.event.query())

    def wait(self, timeout_s=None):
        """Waits for the end. Raises the error that has ended the operation. Raises Timeout after
        timeout_s; the operation then goes on.

        For a device the current stream waits, and the thread only if it is given a timeout. A later
        failure is raised by the next operation."""
        if self.event is not None:
            self.device.wait(self.event)
            if timeout_s is None and not self.done.is_set():
                return
        if not self.done.wait(_possible(timeout_s)):
            error = self._channel.late(self, timeout_s)
            if error is not None:
                raise error
            self.done.wait()
        # Whether a device's operation has ended differs between ranks if no thread has waited.
        self._waited = self.event is None or timeout_s is not None
        if self.error is not None:
            raise self.error

    def future(self):
        """Returns the torch future. A thread of the channel ends it. If a thread has waited for the
        operation, which is then so on every rank, the future ends before this returns, and
        continuations run at once on the caller's thread. torchft relies on that."""
        with self._lock:
            if self._future is not None:
                return self._future[1]
            ended = torch.futures.Future() if self.device is None else self.device.make_future()
            # An error that a continuation raises keeps its text on its way through DDP. One passed
            # to set_exception would arrive as a failed cast to a tensor.
            self._future = ended, ended.then(self._result)
        if self._waited:
            self.complete_future()
        else:
            self._channel.deliver(self)
        return self._future[1]

    def complete_future(self):
        """Ends the future, and runs its continuations."""
        self._future[0].set_result(None)

    def _result(self, _):
        if self.error is not None:
            raise self.error
        if self.event is not None:
            self.device.wait(self.event)
        return self.value


class Channel:
    """The collectives of one job.

    The first failure, a Timeout too, ends the job on this rank: its operations and those of others
    can no longer be matched. The channel leaves the job, and all operations, also later ones, fail
    with the same error, which ends with `advice`.

    Continuations of futures run on threads of the channel, not on the I/O thread. Thus they may
    wait for other operations, as PowerSGD's do. A continuation that starts an operation races with
    the threads that started the first ones, and every rank has to start operations in the same
    order. So it uses another lane, that is another job of the same ranks: operations of depth 0 are
    started by the application's threads, those of depth n + 1 by continuations that were registered
    at depth n (_depth.py). Futures of one depth end in the order in which they were asked for, so
    each lane has one order.
    """

    def __init__(self, timeout_s, advice, *, make_lane=Lane, **options):
        """Joins the job. `timeout_s`: time for each operation, by default that of the options."""
        self.error = None
        self.failure = None  # `error`, unless close() has set it
        self._advice = advice
        self._options = options
        self._make_lane = make_lane
        # Reentrant, because the garbage collector may call start_to_close() on a thread that holds
        # it.
        self._failure_lock = threading.RLock()
        self._pending = {}  # operations in the order of their start; values are not used
        self._deliveries = {}  # the queue of each thread, by (task, depth)
        self._has_left = False  # leave() has ended: threads end with what they were given
        self._closed = threading.Event()
        self._process = os.getpid()
        self._lanes = {}
        _depth.follow_futures()
        try:
            self.timeout_s = timeout_s or self._lane(0).client.wait_timeout_ms / 1000
            self._lane(0).join()
            _watch.add(self)
        except BaseException:
            for lane in self._lanes.values():
                lane.close()
            raise

    @property
    def client(self):
        """The client of the application's own operations."""
        return self._lanes[0].client

    def _lane(self, depth):
        with self._failure_lock:
            if depth not in self._lanes:
                self._lanes[depth] = self._make_lane(depth, self._options)
            return self._lanes[depth]

    def start(self, plan, *, value=None, timeout_s=None):
        """Starts a Plan's collectives, and returns their Operation. A failed channel returns one
        that has failed; only an argument that is refused raises."""
        on_host = common_device(plan.tensors) is None
        if self.error is not None:  # a new lane would be closed by nobody
            return self.failed()
        operation = Operation(self, len(plan.calls), plan.finish if on_host else None, value,
                              timeout_s or self.timeout_s)
        lane = self._lane(operation.depth)
        with lane.start_lock:
            if self.error is None:
                self._pending[operation] = None
                _watch.expect(operation.deadline)
                try:
                    lane.join()
                    lane.start(operation, plan)
                except InvalidArgument as error:
                    if not operation.parts:
                        del self._pending[operation]
                        raise
                    self.fail(error)
                except RuntimeError as error:  # a PboxError, or torch's, on a device
                    self.fail(error)
        if self.error is not None or not plan.calls:
            operation.end(self.error)
        elif operation.device is not None:
            self._deliver(("device", operation.depth), operation, _end_device_operations)
        return operation

    def failed(self):
        """Returns an Operation that has failed with the channel's error."""
        operation = Operation(self, 0, None, None, self.timeout_s)
        operation.end(self.error)
        return operation

    def ended(self, operation):
        """Forgets an operation that has ended."""
        self._pending.pop(operation, None)

    def deliver(self, operation):
        """Makes the thread of the operation's depth end its future, after earlier ones."""
        self._deliver(("futures", operation.depth), operation, _end_futures, operation.depth + 1)

    def _deliver(self, key, operation, run, *arguments):
        """Gives the operation to the thread of `key`, which is (task, depth). Each depth has its
        own thread, because ranks may start operations of two depths in different orders."""
        with self._failure_lock:
            waiting = self._deliveries.get(key)
            if waiting is None:
                waiting = queue.SimpleQueue()
                thread = threading.Thread(target=run, args=(waiting, *arguments), daemon=True,
                                          name=f"pbox-{key[0]}")
                thread.start()
                _delivery_threads.add(thread)
                self._deliveries[key] = waiting
            waiting.put(operation)
            if self._has_left:
                self._end_deliveries()

    def _end_deliveries(self):
        """Makes each thread end once it has ended what it was given. Needs `_failure_lock`."""
        for waiting in self._deliveries.values():
            waiting.put(None)
        self._deliveries.clear()

    def fail(self, error):
        """Notes a failure, after which the channel leaves the job. Returns the error that all
        operations raise."""
        with self._failure_lock:
            if self.error is None:
                text = f"{error}. {self._advice}"
                self.error = (type(error)(text, error.status) if isinstance(error, PboxError)
                              else PboxError(f"{type(error).__name__}: {text}"))
                self.failure = self.error
        _watch.close(self)
        return self.error

    def settled_error(self):
        """Returns the channel's error. Waits first until the failures of operations that their
        device has passed are noted."""
        for operation in tuple(self._pending):
            if operation.event is not None and operation.event.query():
                operation.done.wait(operation.timeout_s)
        return self.error

    def start_to_close(self, error=None):
        """Makes the watch leave the job, without waiting for it. Operations in flight, and later
        ones, fail with `error`. Any thread may call it, whatever locks it holds. Returns False in a
        forked child, which has no part in the job."""
        # In a child the lock may be held by a thread that the child does not have.
        if os.getpid() != self._process:
            return False
        with self._failure_lock:
            if self.error is None:
                self.error = error or Closed("the process group has left its job")
        _watch.close(self)
        return True

    def close(self, error=None):
        """Leaves the job. Operations in flight, and later ones, fail with `error`."""
        if not self.start_to_close(error):
            return
        if not getattr(_thread, "in_callback", False) and not _watch.is_current_thread():
            self._closed.wait()

    def late(self, operation, timeout_s):
        """Returns the Timeout that names the rank or box that is late. None if all collectives have
        ended."""
        for wait in operation.parts:
            try:
                wait(timeout_ms=1)
            except Timeout as error:
                milliseconds = f"{timeout_s * 1000:.0f} ms"
                text = str(error).replace(" after 1 ms", f" after {milliseconds}", 1)
                return Timeout(f"the timeout of {milliseconds} has passed: {text}")
            except PboxError as error:
                return error
        return None

    def check(self, now):
        """Fails if an operation is late. Returns the next deadline. The watch calls it."""
        nearest = float("inf")
        for operation in tuple(self._pending):
            if operation.deadline > now:
                nearest = min(nearest, operation.deadline)
                continue
            error = self.late(operation, operation.timeout_s)
            if error is not None:
                operation.end(self.fail(error))
            elif not operation.done.is_set():  # its callbacks have not run, or it still joins a job
                nearest = min(nearest, now + _LOOK_AGAIN_S)
        return nearest

    def leave(self):
        """Leaves the job and ends what is left. The watch calls it."""
        with self._failure_lock:  # an operation that fails now makes no lane any more
            lanes = tuple(self._lanes.values())
        try:
            for lane in lanes:
                lane.close()
        finally:
            for operation in tuple(self._pending):
                operation.end(self.error)
            with self._failure_lock:
                self._has_left = True
                self._end_deliveries()
            self._closed.set()


def _end_futures(waiting, depth):
    """Ends the futures of one depth of a channel, one after another."""
    _depth.begin_thread(depth)
    for operation in iter(waiting.get, None):
        operation.done.wait()
        operation.complete_future()
        del operation  # its tensors may be large


def _end_device_operations(waiting):
    """Ends the operations on devices of one depth of a channel, one after another."""
    for operation in iter(waiting.get, None):
        for wait in operation.parts:
            error = None
            while not operation.done.is_set():
                try:
                    wait()
                    break
                except Timeout:
                    continue  # the watch knows the deadline
                except PboxError as failure:
                    error = failure
                    break
            operation.part_ended(None, error)
        del operation


class _Watch:
    """The process's thread that ends operations whose deadline has passed, and that leaves jobs,
    which no callback can do. An operation that waits for a straggler ends by itself only if the job
    fails, so its thread might wait forever."""

    def __init__(self):
        self._changed = threading.Condition()
        self._channels = set()
        self._closing = collections.deque()
        self._next = float("inf")
        self._thread = None

    def add(self, channel):
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="pbox-watch", daemon=True)
                thread.start()
                self._thread = thread
            self._channels.add(channel)

    def expect(self, deadline):
        """Makes the thread look for late operations at the deadline, or earlier."""
        if deadline < self._next:
            with self._changed:
                self._next = min(self._next, deadline)
                self._changed.notify()

    def close(self, channel):
        """Makes the channel leave its job."""
        with self._changed:
            self._closing.append(channel)
            self._changed.notify()

    def is_current_thread(self):
        return threading.current_thread() is self._thread

    def channels(self):
        with self._changed:
            return tuple(self._channels)

    def _run(self):
        while True:
            with self._changed:
                while not self._closing and self._next > time.monotonic():
                    self._changed.wait(_possible(self._next - time.monotonic()))
                closing = {self._closing.popleft() for _ in range(len(self._closing))}
                closing &= self._channels
                self._next = float("inf")
            for channel in closing:
                try:
                    channel.leave()
                except Exception:  # pylint: disable=broad-except; other channels need this thread
                    traceback.print_exc()
                with self._changed:  # not before, because the process's exit waits for it
                    self._channels.discard(channel)
            for channel in self.channels():
                try:
                    self.expect(channel.check(time.monotonic()))
                except Exception as error:  # pylint: disable=broad-except; as above
                    channel.fail(error)


_watch = _Watch()


@at_exit
def _close_all():
    for channel in _watch.channels():
        channel.close()
    limit = time.monotonic() + _DELIVERIES_END_S
    for thread in tuple(_delivery_threads):
        thread.join(max(0, limit - time.monotonic()))


def _forget_in_child():
    """A forked child has no threads, and maybe a lock that a thread of its parent holds."""
    global _watch  # pylint: disable=global-statement
    _watch = _Watch()


os.register_at_fork(after_in_child=_forget_in_child)

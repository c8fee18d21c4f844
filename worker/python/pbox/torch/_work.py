"""The Work objects that torch.distributed gets."""

import collections
import datetime

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

# Older torch (1.13 and 2.6, not 2.13) drops the Python object of a Work that its C++ code will wait
# for. It would then wait for the C++ half alone, which never ends. So this queue keeps Works that
# Python has dropped and that C++ may still wait for: one for each tensor of a functional collective
# that nobody has waited for, and _KEPT_MAX more.
_KEPT_MAX = 64
_kept = collections.deque()
_unwaited_tensors = getattr(c10d, "_get_work_registry_size", lambda: 0)


class Work(dist.Work):
    """An operation of a process group that is under way.

    `wait_count`: how often torch's C++ code may wait for it. It waits once for each tensor of a
    functional collective."""

    def __init__(self, operation, wait_count=1):
        super().__init__()
        self._operation = operation
        self._waits_left = wait_count
        while len(_kept) > _KEPT_MAX and len(_kept) > _KEPT_MAX + _unwaited_tensors():
            _kept.popleft()

    def __del__(self):
        # Python calls this once for an object, so a Work that leaves the queue is freed.
        if self._waits_left > 0 and _kept is not None:
            _kept.append(self)

    def _observed(self, wait_count):
        self._waits_left -= wait_count
        if self._waits_left <= 0:
            try:
                _kept.remove(self)
            except ValueError:
                pass

    def wait(self, timeout=datetime.timedelta(0)):
        """Waits for the end; raises the error that the operation has ended with. After `timeout`
        it raises Timeout, which names the rank that is late; the operation goes on. On a CUDA
        device and without `timeout` the current stream waits, and not the thread."""
        seconds = timeout.total_seconds()
        self._operation.wait(seconds if seconds > 0 else None)
        self._observed(1)
        return True

    def get_future(self):
        """Returns the future of the result: a list of tensors."""
        future = self._operation.future()
        self._observed(self._waits_left)
        return future

    def is_completed(self):
        """Returns whether the operation has ended, with or without an error."""
        return self._operation.is_done()

    def is_success(self):
        """Returns whether the operation has ended without an error."""
        return self.is_completed() and self._operation.error is None

    def exception(self):
        """Returns the error that the operation has ended with, or None."""
        return self._operation.error

    def synchronize(self):
        """Waits like wait()."""
        self.wait()

    def result(self):
        """Returns the tensors that the operation has written."""
        return self._operation.value


class Together(dist.Work):
    """Combines several Works into one."""

    def __init__(self, works):
        super().__init__()
        self._works = works

    def wait(self, timeout=datetime.timedelta(0)):
        """Waits for each Work."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self):
        """Returns whether all Works have ended."""
        return all(work.is_completed() for work in self._works)

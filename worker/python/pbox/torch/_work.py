"""The Work objects that torch.distributed gets."""

import collections
import datetime

import torch.distributed as dist

# The C++ code of torch 1.13 drops the Python object of a Work that it will wait for. It would then
# wait for its own half, which never ends. So the last Works that nobody has waited for, and whose
# future nobody has, are kept. Newer versions keep the object.
_kept = collections.deque(maxlen=64)


class Work(dist.Work):
    """An operation of a process group that is under way."""

    def __init__(self, operation):
        super().__init__()
        self._operation = operation
        _kept.append(self)

    def _observed(self):
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
        self._observed()
        return True

    def get_future(self):
        """Returns the future of the result: a list of tensors."""
        future = self._operation.future()
        self._observed()
        return future

    def is_completed(self):
        """Returns whether the operation has ended, also with an error."""
        return self._operation.is_done()

    def is_success(self):
        """Returns whether the operation has ended without an error."""
        return self.is_completed() and self._operation.error is None

    def exception(self):
        """Returns the error that the operation has ended with, or None."""
        return self._operation.error

    def synchronize(self):
        """Waits, as wait() does."""
        self.wait()

    def result(self):
        """Returns the tensors that the operation has written."""
        return self._operation.value


class Together(dist.Work):
    """Several Works as one."""

    def __init__(self, works):
        super().__init__()
        self._works = works

    def wait(self, timeout=datetime.timedelta(0)):
        """Waits for each."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self):
        """Returns whether all have ended."""
        return all(work.is_completed() for work in self._works)

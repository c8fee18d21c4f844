"""Functions that run when the process ends."""

import atexit
import multiprocessing.util


def at_exit(function):
    """A decorator. The process calls the function when it ends, maybe twice.

    A process of multiprocessing that was forked ends without the functions of atexit. It runs the
    finalizers of multiprocessing, but only those that were added after it has started. So they are
    added there once more."""
    atexit.register(function)
    multiprocessing.util.register_after_fork(function, _add_finalizer)
    _add_finalizer(function)
    return function


def _add_finalizer(function):
    multiprocessing.util.Finalize(None, function, exitpriority=0)

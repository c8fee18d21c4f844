"""Functions that run when the process ends."""

import atexit
import multiprocessing.util


def at_exit(function):
    """A decorator. The process calls the function when it ends, maybe twice.

    A process that multiprocessing has forked runs multiprocessing's finalizers when it ends, and
    not the functions of atexit. It drops the finalizers of its parent when it starts, so each
    process adds its own."""
    atexit.register(function)
    multiprocessing.util.register_after_fork(function, _add_finalizer)
    _add_finalizer(function)
    return function


def _add_finalizer(function):
    multiprocessing.util.Finalize(None, function, exitpriority=0)

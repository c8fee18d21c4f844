"""How deep a thread is in continuations of futures (see Channel)."""

import functools
import threading

import torch

_thread = threading.local()
_install_lock = threading.Lock()


def current():
    """Returns 0 outside of continuations, and n + 1 in those that were registered at depth n."""
    return getattr(_thread, "depth", 0)


def begin_thread(depth):
    """Makes this the depth of the calling thread, for continuations that C++ has registered."""
    _thread.depth = depth


def _one_deeper(register):
    """Makes each continuation run one deeper than the thread that registers it. The depth of the
    thread that runs it does not matter: if the future has ended, the continuation runs at once on
    the thread that registers it, and whether the future has ended differs between ranks."""

    @functools.wraps(register)
    def registered(future, continuation):
        depth = current() + 1

        def run(ended):
            before = current()
            _thread.depth = depth
            try:
                return continuation(ended)
            finally:
                _thread.depth = before

        return register(future, run)

    registered.knows_depth = True
    return registered


def follow_futures():
    """Changes torch's futures so that every continuation knows its depth."""
    with _install_lock:
        for name in ("then", "add_done_callback"):
            register = getattr(torch._C.Future, name)  # torch.futures.Future calls these
            if not getattr(register, "knows_depth", False):
                setattr(torch._C.Future, name, _one_deeper(register))

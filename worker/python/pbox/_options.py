"""The options of a Client: their strings, and their values from the environment."""

import ctypes

from . import _library
from .errors import InvalidArgument, error_for

MODES = {"aggregate": 0, "optimize": 1, "collective": 2}
REDUCTIONS = {"sum": 0, "mean": 1}
RECOVERIES = {"copy": 0, "none": 1}
LOST_POLICIES = {"wait": 0, "partial": 1, "abort": 2}
PRIORITY_POLICIES = {"explicit": 0, "forward-order": 1, "fifo": 2}
DELIVERIES = {"broadcast": 0, "pull": 1}
NUMERICS = {"fast": 0, "ordered": 1}
GUARDS = {"flag": 0, "reject": 1, "zero": 2}
COMPRESSIONS = {"none": 0, "q8": 1, "q4": 2, "auto": 3}
SYNC_MODELS = {"bsp": 0, "asp": 1, "ssp": 2, "essp": 3, "pssp": 4, "dpssp": 5, "drop": 6,
               "adaptive": 7}
RELEASES = {"soft": 0, "lazy": 1}
READS = {"fresh": 0, "cached": 1}
LATE_PUSHES = {"drop": 0, "next": 1}
GRACES = {"auto": 2 ** 32 - 1}  # besides numbers of milliseconds
_CHOICES = {
    "mode": MODES, "reduction": REDUCTIONS, "recovery": RECOVERIES,
    "on_worker_lost": LOST_POLICIES, "priority_policy": PRIORITY_POLICIES,
    "delivery": DELIVERIES, "numerics": NUMERICS, "guard": GUARDS,
    "compression": COMPRESSIONS, "sync": SYNC_MODELS, "release": RELEASES, "reads": READS,
    "late_pushes": LATE_PUSHES}


def fill(library, given):
    """Returns the Options: those given that are not None, and the environment's for all others."""
    filled = _library.Options()
    status = library.pbox_options_from_environment_sized(
        ctypes.byref(filled), ctypes.sizeof(filled))
    if status != 0:
        raise error_for(status, library.pbox_last_error(None).decode(errors="replace"))
    known = [name for name, _ in filled._fields_ if name != "struct_size"]
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"unknown option {name!r}; options are {', '.join(known)}")
        if name in _CHOICES and (value is not None or name in ("mode", "reduction")):
            value = choice(name, value, _CHOICES[name])
        if value is None:
            continue
        if name == "grace_ms" and isinstance(value, str):
            value = choice(name, value, GRACES)
        if not isinstance(value, str) and value < 0:
            raise InvalidArgument(f"{name} is {value}: it cannot be negative")
        setattr(filled, name, value.encode() if isinstance(value, str) else value)
    return filled


def name_of(value, choices):
    """Returns the string that a number stands for: the inverse of choice()."""
    return next(name for name, number in choices.items() if number == value)


def choice(what, value, choices):
    """Returns the number of one of the strings that an argument may have."""
    if value not in choices:
        raise InvalidArgument(f"{what} is {value!r}; it must be one of {', '.join(choices)}")
    return choices[value]


def milliseconds(timeout_ms):
    """Returns a time-out in the form that libpbox takes."""
    if not 0 <= timeout_ms < 2 ** 32:
        raise InvalidArgument(f"timeout_ms is {timeout_ms}: it must be in [0, 2**32)")
    return int(timeout_ms)

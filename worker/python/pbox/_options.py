"""The options of a Client: their strings, and their values from the environment."""

import ctypes
import math
import numbers
import operator

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
WAIT_TIMEOUT_MS = 60000  # the meaning of wait_timeout_ms 0
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
    known = {name: kind for name, kind in filled._fields_ if name != "struct_size"}
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"unknown option {name!r}; options are {', '.join(known)}")
        if name in _CHOICES and (value is not None or name in ("mode", "reduction")):
            value = choice(name, value, _CHOICES[name])
        if value is None:
            continue
        if name == "grace_ms" and isinstance(value, str):
            value = choice(name, value, GRACES)
        setattr(filled, name, _of_kind(name, value, known[name]))
    return filled


def _of_kind(name, value, kind):
    """Returns an option's value in the form that its field, of this type of ctypes, takes."""
    if kind is ctypes.c_char_p:
        if not isinstance(value, str):  # ctypes would take an int as an address
            raise InvalidArgument(f"{name} is {value!r}: it must be a string")
        return value.encode()
    if kind is ctypes.c_float:
        if not isinstance(value, numbers.Real) or value < 0:
            raise InvalidArgument(f"{name} is {value!r}: it must be a number and not negative")
        return float(value)
    return integer(name, value, kind)


def integer(what, value, kind):
    """Returns an argument as an int that fits into an integer type of ctypes, which would cut
    it off silently."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    bits = 8 * ctypes.sizeof(kind)
    first = 0 if kind(-1).value > 0 else -2 ** (bits - 1)
    if number is None or not first <= number < first + 2 ** bits:
        raise InvalidArgument(f"{what} is {value!r}: it must be an integer in "
                              f"[{first}, {first + 2 ** bits})")
    return number


def priority(value):
    """Returns a priority in the form that libpbox takes."""
    return integer("priority", value, ctypes.c_int32)


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
    if not 0 <= timeout_ms <= 2 ** 32 - 1:
        raise InvalidArgument(f"timeout_ms is {timeout_ms}: it must be in [0, 2**32)")
    return math.ceil(timeout_ms)  # a part of a millisecond is not 0, the default

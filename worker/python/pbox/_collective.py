"""Checks the arguments of a collective."""

import ctypes

from . import _buffer, _options
from .errors import InvalidArgument

VERBS = {"all_reduce": 0, "reduce_scatter": 1, "all_gather": 2, "broadcast": 3, "barrier": 4}
OPERATORS = {"sum": 0, "mean": 1, "min": 2, "max": 3}


def collective_arguments(verb, source, target, op, root, priority, world_size, on_device=False):
    """Returns the arguments of pbox_collective from the verb to the priority. Buffers are in host
    memory, or on a device if `on_device`; None for a barrier."""
    source_address, given, dtype = _describe(source, "input", False, on_device)
    target_address, taken, output_dtype = _describe(target, "output", True, on_device)
    count, wide = (taken, given) if verb == "reduce_scatter" else (given, taken)
    times = world_size if verb in ("reduce_scatter", "all_gather") else 1
    if wide != times * count or dtype != output_dtype:
        raise InvalidArgument(
            f"{verb} of {world_size} ranks: input has {given} elements of "
            f"{_buffer.NAMES[dtype]}, output {taken} of {_buffer.NAMES[output_dtype]}; "
            + ("they must be alike" if times == 1 else
               f"one must have {times} times the elements of the other, of the same dtype"))
    return (_options.choice("verb", verb, VERBS), source_address, target_address, count, dtype,
            _options.choice("op", op, OPERATORS), _options.integer("root", root, ctypes.c_uint32),
            _options.priority(priority))


def _describe(buffer, what, writable, on_device):
    if buffer is None:
        return None, 0, _buffer.DTYPES["float32"]
    return _buffer.describe(buffer, what, writable, _buffer.COLLECTIVE_DTYPES, on_device)

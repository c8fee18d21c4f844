"""Tables, which are tensors of rows. A rank pushes only some of them."""

from __future__ import annotations

import ctypes
import math

from . import _buffer
from .errors import InvalidArgument


def row_elements(like, name):
    """Returns the number of elements in a row of a buffer that is to be a table."""
    if len(like.shape) < 2 or 0 in like.shape:
        raise InvalidArgument(f"{name} has the shape {tuple(like.shape)}: a table has rows, so two "
                              "dimensions or more, and no dimension of size 0")
    return math.prod(like.shape[1:])


def describe_ids(ids, name):
    """Returns (address, count) of a contiguous list of row numbers in host memory."""
    what = f"the row numbers of {name}"
    kind = getattr(ids.dtype, "name", None) or str(ids.dtype).rpartition(".")[2]
    if kind not in ("int64", "uint64"):
        raise InvalidArgument(f"{what} are {kind}: they must be int64 or uint64")
    if len(ids.shape) != 1:
        raise InvalidArgument(f"{what} have the shape {tuple(ids.shape)}: they must be a list")
    if hasattr(ids, "data_ptr"):
        if ids.device.type != "cpu" or not ids.is_contiguous():
            raise InvalidArgument(f"{what} must be contiguous and in host memory")
        return ids.data_ptr(), ids.numel()
    if not ids.flags.c_contiguous:
        raise InvalidArgument(f"{what} must be contiguous: pass numpy.ascontiguousarray(ids)")
    return ids.ctypes.data, ids.size


class TableCalls:
    """The calls of Client for tables."""

    def push_pull_rows(self, tensor, ids, rows, table, *, callback=None) -> None:
        """Starts one exchange of a tensor that was registered with `table=True`. `ids` are row
        numbers, int64 or uint64, ascending without repeats; `rows` are the gradients of those rows,
        in the dtype of the table. `table` holds the weights as the last exchange has left them,
        and gets the rows that any rank has pushed since. A rank without rows passes an empty list.

        Otherwise it is like push_pull, which pushes all rows of a table."""
        address, count = describe_ids(ids, tensor.name)
        source, elements, dtype = _buffer.describe(rows, f"the rows of {tensor.name}")
        if dtype != tensor.dtype or elements != count * tensor.row_elements:
            raise InvalidArgument(
                f"the rows of {tensor.name} are {elements} elements of {_buffer.NAMES[dtype]}: "
                f"{count} rows of {tensor.row_elements} elements of "
                f"{_buffer.NAMES[tensor.dtype]} are expected")
        target = self._address(tensor, table, writable=True)
        self._start(tensor, (ids, rows, table), callback, self._library.pbox_push_pull_rows,
                    ctypes.cast(address, ctypes.POINTER(ctypes.c_uint64)), count, source, target)

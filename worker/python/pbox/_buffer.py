"""Address, element count and dtype of a torch tensor or a numpy array."""

from .errors import InvalidArgument

# pbox_dtype by the name that torch ("torch.float32") and numpy ("float32") print.
DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
NAMES = {code: name for name, code in DTYPES.items()}
BYTES = {DTYPES["float32"]: 4, DTYPES["float16"]: 2, DTYPES["bfloat16"]: 2}


def dtype_code(dtype, what="dtype"):
    """Returns the pbox_dtype of a torch or numpy dtype, or of its name."""
    name = getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]
    if name not in DTYPES:
        raise InvalidArgument(f"{what} is {name}: the box sums {', '.join(DTYPES)} only")
    if not getattr(dtype, "isnative", True):  # numpy's name does not say so
        raise InvalidArgument(f"{what} is {dtype.str}, of another byte order than this machine's: "
                              f"pass {what}.astype({name!r})")
    return DTYPES[name]


def describe(buffer, what="buffer", writable=False):
    """Returns (address, element count, pbox_dtype) of a contiguous buffer in host memory."""
    code = dtype_code(buffer.dtype, what)
    if hasattr(buffer, "data_ptr"):
        if buffer.device.type != "cpu":
            raise InvalidArgument(
                f"{what} is on {buffer.device}: PBox exchanges tensors in host memory only")
        if not buffer.is_contiguous():
            raise InvalidArgument(f"{what} is not contiguous: pass {what}.contiguous()")
        return buffer.data_ptr(), buffer.numel(), code
    if not buffer.flags.c_contiguous:
        raise InvalidArgument(f"{what} is not contiguous: pass numpy.ascontiguousarray({what})")
    if writable and not buffer.flags.writeable:
        raise InvalidArgument(f"{what} is read-only")
    return buffer.ctypes.data, buffer.size, code

"""Address, element count and dtype of a torch tensor or a numpy array."""

from .errors import InvalidArgument

# pbox_dtype by the name that torch ("torch.float32") and numpy ("float32") print. Registered
# tensors have one of DTYPES. Collectives take all of COLLECTIVE_DTYPES.
DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
COLLECTIVE_DTYPES = {**DTYPES, "int32": 3, "int64": 4, "uint8": 5, "int8": 6, "float64": 7}
NAMES = {code: name for name, code in COLLECTIVE_DTYPES.items()}
BYTES = {0: 4, 1: 2, 2: 2, 3: 4, 4: 8, 5: 1, 6: 1, 7: 8}  # by pbox_dtype


def dtype_code(dtype, what="dtype", known=None):
    """Returns the pbox_dtype of a torch or numpy dtype, or of its name. It has to be one of
    `known`, by default those of registered tensors."""
    known = known or DTYPES
    name = getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]
    if name not in known:
        raise InvalidArgument(f"{what} is {name}: the box takes only {', '.join(known)}")
    if not getattr(dtype, "isnative", True):  # numpy's name does not show this
        raise InvalidArgument(f"{what} is {dtype.str}, whose byte order is not this machine's: "
                              f"pass {what}.astype({name!r})")
    return known[name]


def describe(buffer, what="buffer", writable=False, known=None, on_device=False):
    """Returns (address, element count, pbox_dtype) of a contiguous buffer in host memory, or on a
    device if `on_device`. `known`: see dtype_code."""
    code = dtype_code(buffer.dtype, what, known)
    if hasattr(buffer, "data_ptr"):
        if buffer.device.type != "cpu" and not on_device:
            raise InvalidArgument(
                f"{what} is on {buffer.device}: pbox.Client exchanges tensors in host memory; "
                "pbox.torch takes tensors on CUDA devices too")
        if not buffer.is_contiguous():
            raise InvalidArgument(f"{what} is not contiguous: pass {what}.contiguous()")
        return buffer.data_ptr(), buffer.numel(), code
    if not buffer.flags.c_contiguous:
        raise InvalidArgument(f"{what} is not contiguous: pass numpy.ascontiguousarray({what})")
    if writable and not buffer.flags.writeable:
        raise InvalidArgument(f"{what} is read-only: pass an array that can be written")
    return buffer.ctypes.data, buffer.size, code

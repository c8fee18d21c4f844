"""Finds, loads and checks libpbox.so, and declares the functions of its headers."""

import ctypes
import functools
import os
import pathlib

from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int32, c_int64
from ctypes import c_size_t, c_uint32, c_uint64, c_void_p

from .errors import VersionMismatch

ABI_VERSION = 1
STALENESS_BUCKETS = 16

CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, c_uint32, c_int)
COLLECTIVE_CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, c_uint64, c_int)


class Options(Structure):
    """The C struct pbox_options."""

    _fields_ = [
        ("struct_size", c_uint32), ("box", c_char_p), ("job", c_char_p), ("rank", c_uint32),
        ("world_size", c_uint32), ("mode", c_int), ("reduction", c_int),
        ("chunk_bytes", c_uint32), ("window_bytes", c_uint32), ("join_timeout_ms", c_uint32),
        ("wait_timeout_ms", c_uint32), ("lost_timeout_ms", c_uint32), ("port", c_char_p),
        ("recovery", c_int32), ("recover_timeout_ms", c_uint32), ("on_worker_lost", c_int32),
        ("rejoin", c_uint32), ("priority_policy", c_int32), ("delivery", c_int32),
        ("sync", c_int32), ("staleness", c_uint32),
        ("sync_probability", c_float), ("release", c_int32), ("reads", c_int32),
        ("quorum", c_uint32), ("restore", c_char_p), ("numerics", c_int32),
        ("replicas", c_uint32), ("backup", c_uint32), ("keys", c_char_p), ("guard", c_int32),
        ("guard_max_abs", c_float), ("collective_bytes", c_uint32), ("min_world_size", c_uint32),
        ("compression", c_int32), ("grace_ms", c_uint32),
        ("late_pushes", c_int32), ("weighted", c_uint32)]


class OptimizerOptions(Structure):
    """The C struct pbox_optimizer_options."""

    _fields_ = [
        ("struct_size", c_uint32), ("kind", c_int), ("learning_rate", c_float),
        ("momentum", c_float), ("beta1", c_float), ("beta2", c_float), ("epsilon", c_float),
        ("weight_decay", c_float), ("max_grad_norm", c_float), ("skip_nonfinite", c_uint32)]


class Step(Structure):
    """The C struct pbox_step."""

    _fields_ = [
        ("struct_size", c_uint32), ("round", c_uint32), ("norm", c_double), ("skipped", c_uint32),
        ("loss_scale", c_float), ("scale_age", c_uint64)]


class Operation(Structure):
    """The C struct pbox_operation."""

    _fields_ = [
        ("input", c_void_p), ("output", c_void_p), ("tensor_id", c_uint32),
        ("priority", c_int32), ("has_priority", c_uint32), ("weight", c_float)]


class Statistics(Structure):
    """The C struct pbox_statistics."""

    _fields_ = [("struct_size", c_uint32)] + [(name, c_uint64) for name in (
        "bytes_pushed", "bytes_pulled", "packets_sent", "packets_received",
        "retransmitted_fragments", "probes_sent", "stale_packets", "rejected_packets",
        "operations_completed", "operations_failed")] + [(name, c_uint32) for name in (
            "smoothed_rtt_us", "fragment_bytes", "pipeline_count", "recoveries")] + [
                ("shadow_bytes", c_uint64), ("reads", c_uint64), ("staleness_sum", c_int64),
                ("staleness_square_sum", c_uint64),
                ("reads_by_staleness", c_uint64 * STALENESS_BUCKETS),
                ("dropped_rounds", c_uint64), ("optimizer_restarts", c_uint64),
                ("ports_given_up", c_uint64), ("restored_snapshot", c_uint64),
                ("restored_steps", c_uint64), ("optimizer_snapshot", c_uint64),
                ("optimizer_snapshot_steps", c_uint64), ("packets_direct", c_uint64),
                ("packets_staged", c_uint64), ("packets_staged_refused", c_uint64),
                ("zero_fragments", c_uint64), ("chosen_tensors", c_uint32),
                ("chosen_compressed", c_uint32), ("compression_changes", c_uint64)]


_CONTEXT = c_void_p
_PROTOTYPES = {
    "pbox_options_from_environment_sized": (c_int, [POINTER(Options), c_size_t]),
    "pbox_create": (c_int, [POINTER(Options), POINTER(_CONTEXT)]),
    "pbox_register_tensor":
        (c_int, [_CONTEXT, c_char_p, c_uint64, c_int, c_int32, POINTER(c_uint32)]),
    "pbox_optimizer_options_init_sized":
        (None, [POINTER(OptimizerOptions), c_size_t, c_int32]),
    "pbox_set_optimizer": (c_int, [_CONTEXT, POINTER(OptimizerOptions)]),
    "pbox_set_tensor_optimizer": (c_int, [_CONTEXT, c_uint32, c_float, c_float]),
    "pbox_join": (c_int, [_CONTEXT]),
    "pbox_round_weight": (c_float, [c_double]),
    "pbox_push_pull_many_sized":
        (c_int, [_CONTEXT, POINTER(Operation), c_size_t, c_uint32, CALLBACK, c_void_p]),
    "pbox_init_weights": (c_int, [_CONTEXT, c_uint32, c_void_p, CALLBACK, c_void_p]),
    "pbox_set_tensor_rows": (c_int, [_CONTEXT, c_uint32, c_uint32]),
    "pbox_set_tensor_compression": (c_int, [_CONTEXT, c_uint32, c_int32]),
    "pbox_tensor_compression": (c_int, [_CONTEXT, c_uint32, POINTER(c_int32), POINTER(c_double),
                                        POINTER(c_double)]),
    "pbox_push_pull_rows":
        (c_int, [_CONTEXT, c_uint32, POINTER(c_uint64), c_uint64, c_void_p, c_void_p, CALLBACK,
                 c_void_p]),
    "pbox_register_memory": (c_int, [_CONTEXT, c_void_p, c_uint64]),
    "pbox_unregister_memory": (c_int, [_CONTEXT, c_void_p]),
    "pbox_alloc": (c_int, [_CONTEXT, c_uint64, POINTER(c_void_p)]),
    "pbox_free": (c_int, [c_void_p]),
    "pbox_tensor_round": (c_int, [_CONTEXT, c_uint32, POINTER(c_uint32)]),
    "pbox_contributors": (c_int, [_CONTEXT, c_uint32, POINTER(c_uint32)]),
    "pbox_wait": (c_int, [_CONTEXT, c_uint32, c_uint32]),
    "pbox_wait_all": (c_int, [_CONTEXT, c_uint32]),
    "pbox_set_priorities": (c_int, [_CONTEXT, c_int32, POINTER(c_int32)]),
    "pbox_set_learning_rate": (c_int, [_CONTEXT, c_float]),
    "pbox_set_sync": (c_int, [_CONTEXT, c_char_p, c_char_p]),
    "pbox_last_step": (c_int, [_CONTEXT, POINTER(Step)]),
    "pbox_set_loss_scale": (c_int, [_CONTEXT, c_float, c_uint64]),
    "pbox_barrier": (c_int, [_CONTEXT, c_uint32]),
    "pbox_get_statistics": (c_int, [_CONTEXT, POINTER(Statistics)]),
    "pbox_collective":
        (c_int, [_CONTEXT, c_int32, c_void_p, c_void_p, c_uint64, c_int, c_int32, c_uint32,
                 c_int32, COLLECTIVE_CALLBACK, c_void_p, POINTER(c_uint64)]),
    "pbox_wait_collective": (c_int, [_CONTEXT, c_uint64, c_uint32]),
    "pbox_cuda_attach": (c_int, [_CONTEXT, c_int32, c_void_p, c_void_p]),
    "pbox_cuda_collective":
        (c_int, [_CONTEXT, c_int32, c_void_p, c_int32, c_void_p, c_void_p, c_uint64, c_int, c_int32,
                 c_uint32, c_int32, POINTER(c_uint64)]),
    "pbox_cuda_push": (c_int, [_CONTEXT, c_int32, c_void_p, c_uint32, c_void_p, c_uint32]),
    "pbox_cuda_pull": (c_int, [_CONTEXT, c_int32, c_void_p, c_uint32, c_void_p]),
    "pbox_leave": (c_int, [_CONTEXT]),
    "pbox_destroy": (None, [_CONTEXT]),
    "pbox_last_error": (c_char_p, [_CONTEXT]),
    "pbox_status_string": (c_char_p, [c_int]),
    "pbox_abi_version": (c_uint32, []),
}


def checkout_folder():
    """Returns the third folder above the package, or / if there are fewer. It is the root of the
    source tree if the package was not installed."""
    parents = pathlib.Path(__file__).resolve().parents
    return parents[min(3, len(parents) - 1)]


def _candidates():
    """Returns the paths where libpbox.so may be, best first. PBOX_LIBRARY excludes all others."""
    if os.environ.get("PBOX_LIBRARY"):
        return [os.environ["PBOX_LIBRARY"]]
    here = pathlib.Path(__file__).resolve()
    folders = [here.parent]
    if os.environ.get("PBOX_BUILD_DIR"):
        folders.append(pathlib.Path(os.environ["PBOX_BUILD_DIR"]) / "lib")
    folders.append(checkout_folder())  # if installed: lib, of lib/python3/dist-packages/pbox
    folders.append(checkout_folder() / "build" / "release" / "lib")
    found = [str(folder / "libpbox.so") for folder in folders
             if (folder / "libpbox.so").exists()]
    return found + [f"libpbox.so.{ABI_VERSION}"]


@functools.lru_cache(maxsize=None)
def load():
    """Returns the loaded library, with the prototype of each function set."""
    path = _candidates()[0]
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"libpbox.so cannot be loaded ({error}). Build it, or set PBOX_LIBRARY to its path."
        ) from error
    try:
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
    except AttributeError as error:
        raise VersionMismatch(f"{path} is not a libpbox of ABI version {ABI_VERSION}: {error}")
    version = library.pbox_abi_version()
    if version != ABI_VERSION:
        raise VersionMismatch(
            f"{path} has ABI version {version}, but this package needs {ABI_VERSION}: "
            "install the package and the library of the same release")
    return library

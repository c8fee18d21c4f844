"""Bases of a process group that serves all devices itself: torch expects a backend for each."""

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d


class _BackendView:
    """A backend as torch's Python code sees it. dist.split_group() and DeviceMesh ask whether
    groups can be split, and give `options` back to ProcessGroup.split_group()."""

    options = None

    def __init__(self, inner):
        self._inner = inner
        self.supports_splitting = inner is not None

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def name(self):
        return "pbox"

    def perform_nocolor_split(self, _):
        """Does nothing: ranks that are not in a new group take no part in it."""

    def _set_sequence_number_for_group(self):
        """Does nothing: the job numbers its operations."""


class _Registered(dist.ProcessGroup):
    """Registers a backend with torch's C++ code, which asks it for the group's name. The backend
    connects to nobody, and refuses operations that bypass the group's class."""

    def _register_inner_backend(self, rank, size):
        """Called once, by the constructor."""
        options = c10d.FakeProcessGroup.Options()
        options.error_on_collective = True
        inner = c10d.FakeProcessGroup._create_internal(rank, size, options)
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM,
                                   inner)
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)

    def _get_backend(self, device):
        return _BackendView(super()._get_backend(device))


class _Unregistered(dist.ProcessGroup):
    """Registers no backend, because the FakeProcessGroup of older torch, such as 2.6, does nothing
    and reports success. C++ code that needs a backend raises an error instead. This class gives
    torch's Python code what it would read from a backend."""

    group_name = ""
    group_desc = ""
    _device_types = [torch.device("cpu"), torch.device("cuda")]

    def _register_inner_backend(self, rank, size):
        """Does nothing: there is no backend."""

    def _set_group_name(self, name):
        self.group_name = name

    def _set_group_desc(self, description):
        self.group_desc = description

    def _get_backend(self, _):
        return _BackendView(None)


# Torch that has this function can make a FakeProcessGroup that refuses operations.
InnerBackend = (_Registered if hasattr(getattr(c10d, "FakeProcessGroup", None), "_create_internal")
                else _Unregistered)

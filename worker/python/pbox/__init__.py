"""PBox for Python: the client of a gradient-aggregation box, over libpbox's C ABI.

`pbox.Client` is the plain client, for torch tensors and numpy arrays. `pbox.torch` connects it to
PyTorch and has to be imported by name, so that `import pbox` needs neither torch nor numpy.
`pbox.LocalBox` starts a private box on this machine, for a first try and for tests.
"""

from .client import Client, Tensor
from .errors import (AlreadyExists, BoxLost, Closed, Forked, InvalidArgument, Mismatch, NotFound,
                     PboxError, ResourceExhausted, SystemFailure, Timeout, Unavailable,
                     VersionMismatch, WorkerLost)
from .local_box import LocalBox

__all__ = [
    "AlreadyExists", "BoxLost", "Client", "Closed", "Forked", "InvalidArgument", "LocalBox",
    "Mismatch", "NotFound", "PboxError", "ResourceExhausted", "SystemFailure", "Tensor", "Timeout",
    "Unavailable", "VersionMismatch", "WorkerLost"]

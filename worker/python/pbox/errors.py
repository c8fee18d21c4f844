"""One exception for each status of libpbox, with libpbox's message."""

from __future__ import annotations


class PboxError(RuntimeError):
    """A call into libpbox failed. `status` is the pbox_status (pbox.h) that it has returned."""

    status: int = 14  # PBOX_INTERNAL

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        if status is not None:
            self.status = status


class InvalidArgument(PboxError, ValueError):
    """An argument is out of bounds, or the call is not allowed at this time."""

    status = 1


class NotFound(PboxError):
    """Something does not exist, for example a tensor or job."""

    status = 2


class AlreadyExists(PboxError):
    """Something exists already, for example another worker with this rank."""

    status = 3


class ResourceExhausted(PboxError):
    """A quota of the box is used up; the message names it."""

    status = 4


class Unavailable(PboxError):
    """The box cannot be reached, or it refuses."""

    status = 5


class Timeout(PboxError):
    """A deadline passed; the message names the rank or box that is late."""

    status = 6


class WorkerLost(PboxError):
    """Another rank died or left; the message names it."""

    status = 7


class BoxLost(PboxError):
    """The box died or stopped answering."""

    status = 8


class Mismatch(PboxError):
    """The ranks disagree; the message names the first difference."""

    status = 9


class VersionMismatch(PboxError):
    """The versions of the library, the box and this package do not fit."""

    status = 10


class SystemFailure(PboxError):
    """The operating system refused something."""

    status = 11


class Forked(PboxError):
    """The client belongs to the parent process. A forked child has to make its own."""

    status = 12


class Closed(PboxError):
    """The client has left the job."""

    status = 13


_BY_STATUS = {kind.status: kind for kind in (
    InvalidArgument, NotFound, AlreadyExists, ResourceExhausted, Unavailable, Timeout, WorkerLost,
    BoxLost, Mismatch, VersionMismatch, SystemFailure, Forked, Closed)}


def error_for(status: int, message: str) -> PboxError:
    """Returns the exception for a status other than PBOX_OK."""
    return _BY_STATUS.get(status, PboxError)(message, status)

"""The context manager of optimizers that are in a job."""

from __future__ import annotations

from typing import Any, TypeVar

_Self = TypeVar("_Self", bound="Closing")


class Closing:
    """Leaves the job at the end of a `with` block: by close(), which waits for what is in flight,
    or at once, by _release(), if the block ends with an exception."""

    def close(self) -> None:
        raise NotImplementedError

    def _release(self) -> None:
        raise NotImplementedError

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()
        else:
            self._release()

"""A process group for torchft: its replicas exchange data with the box, and not with each other."""

import datetime

import torchft.process_group

from . import process_group


class ProcessGroupPbox(torchft.process_group.ProcessGroupWrapper):
    """Give it to torchft.Manager(pg=...). Each configure() makes a new job on the box, so what is
    in flight from an older configuration cannot reach a newer one. Box, port and keys come from the
    environment, like those of pbox.Client."""

    def __init__(self, timeout=datetime.timedelta(seconds=60)):
        super().__init__(timeout)
        self._error = None

    # pylint: disable=missing-function-docstring; torchft's names, torchft's contracts
    def getBackendName(self):  # pylint: disable=invalid-name
        return "torchft-pbox"

    def configure(self, *arguments, **keywords):
        super().configure(*arguments, **keywords)
        self._error = None

    def _create_pg(self, store, rank, world_size):
        return process_group.create(store, rank, world_size, self._timeout)

    def abort(self, errored=True):
        if errored and self._pg is not None:
            self._error = RuntimeError("the process group was aborted")
        super().abort(errored)

    def shutdown(self):
        if self._pg is not None:
            self._pg.shutdown()
        super().shutdown()

    def errored(self):
        return self._error or (self._pg.errored() if self._pg is not None else None)

    def set_timeout(self, timeout):
        super().set_timeout(timeout)
        if self._pg is not None:
            self._pg.set_timeout(timeout)

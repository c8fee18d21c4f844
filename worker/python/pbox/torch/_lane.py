"""One job of a channel, and its streams of each device."""

import functools
import os
import threading

from ..client import Client
from ..errors import Closed
from ._device import classes, common_device


class Lane:
    """A job of the channel's ranks, with an order of operations of its own, and with its own
    streams of each device: one lane's results must not wait for another's."""

    def __init__(self, depth, options):
        if depth > 0:
            job = options.get("job") or os.environ.get("PBOX_JOB") or "default"  # as in libpbox
            options = {**options, "job": f"{job}.{depth}"}
        self.client = self.make_client(options)
        self.start_lock = threading.Lock()
        self._joined = False
        self._devices = {}  # by torch.device

    def make_client(self, options):
        """Returns the client of the job."""
        return Client(mode="collective", **options)

    def join(self):
        """Joins the job with the first operation."""
        if not self._joined:
            self.client.join()
            self._joined = True

    def close(self):
        """Leaves the job, and frees everything."""
        if not self._devices:
            self.client.close()
            return
        # Memory is freed when the device has passed everything. Operations of other jobs may delay
        # that, and the caller, which is the watch, has to see their deadlines.
        try:
            self.client.leave()
        except Closed:
            pass  # the application has closed the client
        try:
            threading.Thread(target=self.client.close, name="pbox-close", daemon=True).start()
        except RuntimeError:
            pass  # Python 3.12 starts no thread while it exits; the client then closes itself

    def _device(self, device):
        if device is not None and device not in self._devices:
            self._devices[device] = classes[device.type](self.client, device)
        return self._devices.get(device)

    def start(self, operation, plan):
        """Starts an operation's collectives. Needs `start_lock`."""
        device = operation.device = self._device(common_device(plan.tensors))
        for verb, source, target, options in plan.calls:
            if device is not None and source is not None:
                number = device.collective(verb, source, target, **options)
            else:
                number = self.client.collective(verb, source, target,
                                                callback=operation.part_ended, **options)
            operation.parts.append(functools.partial(self.client.wait_collective, number))
        if device is not None:
            device.keep(plan.tensors)
            operation.take_results_behind(plan.finish)

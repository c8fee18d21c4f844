"""Streams and events of a CUDA device, for tensors that pass through host memory.

libpbox does the copies (pbox/cuda.h). Here is what belongs to torch: which streams it uses, how
the caller's stream waits for a result, and how long memory stays with the caching allocator. A
test replaces torch's streams by others through `classes`."""

import torch

from ..errors import InvalidArgument


class CudaDevice:
    """A device of one client. `client` has been joined."""

    def __init__(self, client, device):
        self._client = client
        self._device = device
        # Torch never destroys its streams, so the allocator may refer to them after close(). Those
        # of high priority are not the ones that applications usually get from torch.
        self._to_host = torch.cuda.Stream(device, priority=-1)
        self._to_device = torch.cuda.Stream(device, priority=-1)
        self.index = device.index
        client.attach_cuda(self.index, self._to_host.cuda_stream, self._to_device.cuda_stream)

    def current_stream(self):
        """Returns the handle of the stream on which the caller computes."""
        return torch.cuda.current_stream(self._device).cuda_stream

    def keep(self, tensors):
        """Keeps the tensors' memory, once they are dropped, until the copies are done."""
        for tensor in tensors:
            tensor.record_stream(self._to_host)
            tensor.record_stream(self._to_device)

    def run_behind(self, function):
        """Queues what the function computes behind all results so far."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._to_device):
            function()

    def mark(self):
        """Returns an event behind all results so far, and behind what computes on them."""
        event = torch.cuda.Event()
        event.record(self._to_device)
        return event

    def wait(self, event):
        """Makes the caller's stream wait for the event. The thread does not wait."""
        torch.cuda.current_stream(self._device).wait_event(event)

    def make_future(self):
        """Returns a future whose continuations, and the threads that wait for it, see the device's
        work that precedes its end."""
        return torch.futures.Future(devices=[self._device])

    def collective(self, *call, **options):
        """Like Client.collective(). The caller's stream has to wait for an event of mark()."""
        return self._client.cuda_collective(self.index, self.current_stream(), *call, **options)

    def push(self, tensor, gradient, initial_weights=False):
        """Sends a gradient, or the initial weights, once it is computed."""
        self._client.cuda_push(self.index, self.current_stream(), tensor, gradient, initial_weights)
        self.keep([gradient])

    def pull(self, tensor, weights):
        """Queues the copy of push()'s result to `weights`. Returns an event behind the copy."""
        self._client.cuda_pull(self.index, self.current_stream(), tensor, weights)
        return self.mark()


classes = {"cuda": CudaDevice}  # by the type of a torch.device


def common_device(tensors):
    """Returns the torch.device of the tensors, None if it is the host."""
    devices = {tensor.device for tensor in tensors}
    if not devices:
        return None
    if len(devices) > 1:
        raise InvalidArgument(
            f"the tensors of one operation are on {', '.join(sorted(map(str, devices)))}: they "
            "must be on one device")
    device, = devices
    if device.type in classes:
        return device
    if device.type != "cpu":
        raise InvalidArgument(f"a tensor is on {device}: the box takes tensors in host memory and "
                              "on CUDA devices; pass tensor.cpu()")
    return None

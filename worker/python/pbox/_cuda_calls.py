"""The calls of pbox/cuda.h. `device` is a device's index, streams are CUDA's handles."""

import ctypes

from . import _buffer
from ._collective import collective_arguments


class CudaCalls:
    """A part of Client, for pbox.torch: buffers are contiguous tensors on the device. The caller
    keeps them until the device has passed the call."""

    # pylint: disable=no-member; Client has the members

    def attach_cuda(self, device, to_host, to_device):
        """Prepares the use of a device, with its two streams for copies. Call it once for each
        device."""
        self._call(self._library.pbox_cuda_attach, device, to_host, to_device)

    def cuda_collective(self, device, stream, verb, source=None, target=None, *, op="sum", root=0,
                        priority=0):
        """Like collective(), after the work that is queued on the stream now. wait_collective()
        returns when the result is in host memory."""
        target = source if target is None else target
        call = collective_arguments(verb, source, target, op, root, priority, self.world_size,
                                    on_device=True)
        number = ctypes.c_uint64()
        self._call(self._library.pbox_cuda_collective, device, stream, *call, ctypes.byref(number))
        return number.value

    def cuda_push(self, device, stream, tensor, gradient, initial_weights=False):
        """Like push_pull(), or init_weights() if `initial_weights`, after the work that is queued
        on the stream now. cuda_pull() copies the result back."""
        self._call(self._library.pbox_cuda_push, device, stream, tensor.id,
                   self._device_address(tensor, gradient), initial_weights)

    def cuda_pull(self, device, stream, tensor, weights):
        """Copies the result of the last cuda_push() to `weights` when it has arrived. Call it once
        for each cuda_push()."""
        self._call(self._library.pbox_cuda_pull, device, stream, tensor.id,
                   self._device_address(tensor, weights))

    def _device_address(self, tensor, buffer):
        return self._checked_address(
            tensor, _buffer.describe(buffer, tensor.name, on_device=True))

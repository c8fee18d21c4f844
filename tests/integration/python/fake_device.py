"""A CUDA device without a GPU: tensors in host memory count as the device's, and its streams are
those of the fake libcudart (tests/support/fake_cuda)."""

import ctypes
import os
import pathlib

import torch

import pbox.torch._device

_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Entry(ctypes.Structure):
    """The struct FakeCudaEntry of the fake libcudart."""

    _fields_ = [("kind", ctypes.c_char * 16)] + [(name, ctypes.c_uint64) for name in (
        "stream", "bytes", "begin_ns", "end_ns")]


class FakeDevice:
    """Takes the place of _device.CudaDevice."""

    library = None
    waits = True  # whether wait() blocks, like a read of device memory
    kept = set()  # addresses of the memory that keep() was given
    events = 0

    def __init__(self, client, device):
        self._client = client
        self.index = 0
        self._device = device
        self._streams = [ctypes.c_void_p() for _ in range(3)]
        for stream in self._streams:
            self.library.cudaStreamCreateWithFlags(ctypes.byref(stream), 1)
        client.attach_cuda(0, self._streams[1], self._streams[2])
        self._references = []

    def current_stream(self):
        return self._streams[0]

    def keep(self, tensors):
        self._references.append(list(tensors))
        self.kept.update(tensor.data_ptr() for tensor in tensors)

    def run_behind(self, function):
        def kernel(_):
            with torch.inference_mode():
                function()

        self._references.append(_KERNEL(kernel))
        self.library.fake_cuda_launch(self._streams[2], self._references[-1], None)

    def mark(self):
        FakeDevice.events += 1
        return FakeEvent(self.library, self._streams[2])

    def wait(self, event):
        self.library.cudaStreamWaitEvent(self._streams[0], event.handle, 0)
        if self.waits:
            self.library.cudaEventSynchronize(event.handle)

    @staticmethod
    def make_future():
        return torch.futures.Future()

    collective = pbox.torch._device.CudaDevice.collective
    push = pbox.torch._device.CudaDevice.push
    pull = pbox.torch._device.CudaDevice.pull


class FakeEvent:
    def __init__(self, library, stream):
        self._library = library
        self.handle = ctypes.c_void_p()
        library.cudaEventCreateWithFlags(ctypes.byref(self.handle), 2)
        library.cudaEventRecord(self.handle, stream)

    def query(self):
        return self._library.cudaEventQuery(self.handle) == 0


def install():
    """Loads the fake libraries into this process, and makes tensors in host memory those of a
    device."""
    folder = pathlib.Path(os.environ["PBOX_BUILD_DIR"]) / "tests" / "fake_cuda"
    # Loads the fake libcudart too, with which this library is linked.
    ctypes.CDLL(str(folder / "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)
    FakeDevice.library = ctypes.CDLL(str(folder / "libcudart.so.fake"))
    FakeDevice.library.fake_cuda_violations.restype = ctypes.c_uint64
    FakeDevice.library.fake_cuda_entries.restype = ctypes.c_uint64
    FakeDevice.library.fake_cuda_hold_after.argtypes = [ctypes.c_uint64]
    pbox.torch._device.classes["cpu"] = FakeDevice
    return FakeDevice.library


def entries():
    """Returns what the streams have run."""
    taken = (Entry * 100000)()
    return taken[:FakeDevice.library.fake_cuda_entries(taken, len(taken))]


def violation():
    """Returns the last forbidden call; None if there was none."""
    last = ctypes.c_char_p()
    count = FakeDevice.library.fake_cuda_violations(ctypes.byref(last))
    return last.value.decode() if count else None

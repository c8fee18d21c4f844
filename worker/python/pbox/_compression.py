"""Compression of tensors."""

from __future__ import annotations

import ctypes

from . import _options


class CompressionCalls:
    """The calls of Client for compressed tensors."""

    def compression_of(self, tensor) -> tuple[str, float, float]:
        """Returns how the tensor's last exchange travelled ("none", "q8" or "q4"), and the numbers
        by which compression "auto" decides: the seconds of an exchange, uncompressed and
        compressed; 0 if they are not known. Call it once the client has joined."""
        now, plain, compressed = ctypes.c_int32(), ctypes.c_double(), ctypes.c_double()
        self._call(self._library.pbox_tensor_compression, tensor.id, ctypes.byref(now),
                   ctypes.byref(plain), ctypes.byref(compressed))
        name = _options.name_of(now.value, _options.COMPRESSIONS)
        return name, plain.value, compressed.value

    def _set_compression(self, tensor_id, compression):
        self._call(self._library.pbox_set_tensor_compression, tensor_id,
                   _options.choice("compression", compression, _options.COMPRESSIONS))

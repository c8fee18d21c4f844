"""Sharded models, DTensor and checkpoints with tensors of a device, by the fake libcudart: the same
bits as over gloo. The GPU's own tests are in tests/integration/cuda."""

import unittest

import fake_device
import test_sharded


def _on_device(options, function, *arguments):
    if arguments[-1] == "gloo":
        return function(options, *arguments)
    fake_device.install()
    returned = function(options, *arguments)
    assert fake_device.violation() is None, fake_device.violation()
    assert fake_device.FakeDevice.events > 0
    return returned


class CudaShardedTest(test_sharded.ShardedTest):
    """The tests of ShardedTest, on the fake device."""

    def run_ranks(self, function, world_size, *arguments, **options):
        return super().run_ranks(_on_device, world_size, function, *arguments, **options)


if __name__ == "__main__":
    unittest.main()

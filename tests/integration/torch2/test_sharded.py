"""Over a box torch 2 gives the same bits as over gloo: sharded models, tensors, checkpoints."""

import unittest

import numpy

import networks
import sharded_ranks
from support import BoxTestCase


class _Compared(BoxTestCase):
    def both(self, function, world_size, *arguments):
        """Yields (ours, gloo's) of what each rank returns."""
        results = [
            self.run_ranks(function, world_size, self.temporary_path("store"), *more, backend)
            for backend, *more in (("pbox", *arguments), ("gloo", *arguments))]
        yield from zip(*results)

    def compare(self, ours, gloos):
        self.assertEqual(ours.keys(), gloos.keys())
        for name, arrays in ours.items():
            self.assertGreater(len(arrays), 0)
            for mine, other in zip(arrays, gloos[name], strict=True):
                numpy.testing.assert_array_equal(mine, other, err_msg=name)

    def compare_two_ranks(self, results):
        """Checks what sharded_ranks.two_ranks() returns, as (ours, gloo's) for each rank."""
        for rank, (ours, gloos) in enumerate(results):
            for saved, loaded in (ours[0].pop("checkpoint"), gloos[0].pop("checkpoint")):
                for before, after in zip(saved, loaded, strict=True):
                    numpy.testing.assert_array_equal(before, after)
            self.compare(ours[0], gloos[0])
            exchanged, objects, scattered = ours[1]
            numpy.testing.assert_array_equal(
                exchanged, [2 * rank, 2 * rank + 1, 100 + 2 * rank, 101 + 2 * rank])
            self.assertEqual(objects, [{"rank": 0}, {"rank": 1}])
            self.assertEqual(scattered, [str(rank)])


class ShardedTest(_Compared):
    def test_ddp_fsdp_dtensor_checkpoints_and_functional_collectives(self):
        self.compare_two_ranks(self.both(sharded_ranks.two_ranks, 2,
                                         self.temporary_path("checkpoint")))

    def test_hybrid_sharding_over_a_mesh_and_by_attach_hsdp(self):
        for ours, gloos in self.both(sharded_ranks.four_ranks, 4):
            self.compare(ours, gloos)


class NetworksTest(networks.NetworksTestCase, _Compared):
    """The ranks reach the box, and not one another."""

    def test_ddp_fsdp_dtensor_checkpoints_and_functional_collectives(self):
        folder = self.temporary_path("checkpoint")
        ours = self.run_apart(sharded_ranks.two_ranks, None, folder, "pbox")
        gloos = self.run_ranks(sharded_ranks.two_ranks, 2, self.temporary_path("store"), folder,
                               "gloo")
        self.compare_two_ranks(zip(ours, gloos))


if __name__ == "__main__":
    unittest.main()

"""GPT-2 small, from its configuration, learns over a box exactly as it does over gloo."""

import unittest

import gpt2_ranks
from support import BoxTestCase


class Gpt2Test(BoxTestCase):
    def losses(self, way, backend):
        """Returns the losses of each rank."""
        ranks = self.start_ranks(gpt2_ranks.train, 2, way, self.temporary_path("store"), backend)
        results = [ranks.result(rank, timeout_s=1500) for rank in range(2)]
        ranks.close()
        print(f"{way} over {backend}: losses {results[0][0][0]:.3f} to {results[0][0][-1]:.3f}, "
              f"{max(memory for _, memory in results):.1f} GiB")
        return [losses for losses, _ in results]

    def check(self, way):
        ours = self.losses(way, "pbox")
        self.assertEqual(ours, self.losses(way, "gloo"))
        for losses in ours:
            self.assertEqual(len(losses), gpt2_ranks.STEPS)
            self.assertLess(losses[-1], losses[0] / 2, "it has learned nothing")

    def test_ddp(self):
        self.check("ddp")

    def test_fsdp2(self):
        self.check("fsdp2")

    def test_hsdp(self):
        self.check("hsdp")


if __name__ == "__main__":
    unittest.main()

"""Lightning and Accelerate train over a box, with the same weights as over gloo."""

import os
import pathlib
import subprocess
import sys
import unittest

import support
import torch


class Frameworks(support.BoxTestCase):
    def weights(self, framework, how):
        path = self.temporary_path("weights")
        script = pathlib.Path(__file__).with_name("framework_ranks.py")
        command = [sys.executable, "-B", "-m", "torch.distributed.run", "--standalone",
                   "--nproc-per-node=2", str(script), framework, how, path]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=300, check=False,
            env={**os.environ, "PBOX_BOX": self.box.control, "PBOX_JOB": f"{framework}-{how}"})
        self.assertEqual(ended.returncode, 0, ended.stderr[-4000:])
        return torch.load(path)

    def check(self, framework):
        expected = self.weights(framework, "gloo")
        for how in ("group", "hook"):
            with self.subTest(how=how):
                ours = self.weights(framework, how)
                self.assertEqual(ours.keys(), expected.keys())
                for name, tensor in ours.items():
                    # DDP divides before gloo sums, the box after it has summed.
                    torch.testing.assert_close(tensor, expected[name], rtol=1e-6, atol=1e-6)

    def test_lightning(self):
        self.check("lightning")

    def test_accelerate(self):
        self.check("accelerate")


if __name__ == "__main__":
    unittest.main()

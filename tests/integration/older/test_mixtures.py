"""Boxes and workers of this build and of a build of the previous release, in every combination.

Started by `run`. PBOX_OLDER_BUILD names the build folder of that release, with bin/pboxd and
lib/libpbox.so.1, two folders below its source tree. PBOX_BUILD_DIR names this build's.
"""

import os
import pathlib
import subprocess
import sys
import unittest
from unittest import mock

import pbox

OLDER = os.environ["PBOX_OLDER_BUILD"]
ROUNDS = 5

RANK = """
import sys
import numpy as np
import pbox

rank, box = int(sys.argv[1]), sys.argv[2]
client = pbox.Client(box=box, job="upgrade", rank=rank, world_size=2, mode=sys.argv[3],
                     reduction="sum")
tensor = client.register("tensor", np.zeros(20000, np.float32))
if sys.argv[3] == "optimize":
    client.set_optimizer("sgd", learning_rate=1.0)
client.join()
result = np.zeros(20000, np.float32)
if sys.argv[3] == "optimize":
    client.init_weights(tensor, result)
    client.wait(tensor)
for round_ in range(%d):
    gradient = np.full(20000, 10 * rank + 1, np.float32)
    client.push_pull(tensor, gradient, result)
    client.wait(tensor)
    expected = 12 if sys.argv[3] == "aggregate" else -12 * (round_ + 1)
    assert (result == expected).all(), (result[0], expected)
client.barrier()
client.leave()
""" % ROUNDS


def environment_of(build):
    """Returns the environment of a rank that uses this build: its library, and the Python package
    of the tree in which it was built, since each package goes with its own library."""
    build = pathlib.Path(build)
    return {**os.environ, "PBOX_LIBRARY": str(build / "lib" / "libpbox.so.1"),
            "PYTHONPATH": str(build.parents[1] / "worker" / "python")}


class OlderReleaseTest(unittest.TestCase):
    def train(self, box_build, rank_builds, mode):
        with mock.patch.dict(os.environ, {"PBOX_BUILD_DIR": box_build}), pbox.LocalBox() as box:
            ranks = [
                subprocess.Popen([sys.executable, "-B", "-c", RANK, str(rank), box.control, mode],
                                 env=environment_of(build), stderr=subprocess.PIPE, text=True)
                for rank, build in enumerate(rank_builds)]
            try:
                for rank in ranks:
                    _, errors = rank.communicate(timeout=60)
                    self.assertEqual(rank.returncode, 0, errors + box.log_tail())
            finally:
                for rank in ranks:
                    rank.kill()
                    rank.communicate()

    def test_mixtures(self):
        this = os.environ["PBOX_BUILD_DIR"]
        for box in (this, OLDER):
            for ranks in ((this, this), (this, OLDER), (OLDER, this), (OLDER, OLDER)):
                for mode in ("aggregate", "optimize"):
                    with self.subTest(box=box, ranks=ranks, mode=mode):
                        self.train(box, ranks, mode)

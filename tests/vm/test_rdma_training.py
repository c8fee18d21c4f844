"""In the guest: the demo's training over RDMA devices comes to the weights that it comes to with
sockets, with a box of two pipelines on two NUMA nodes, in both modes of jobs and of the box."""

import os
import pathlib
import sys
import unittest

import numpy

import pbox

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "tools" / "demo_training"))
import digits
import ranks
import training

# A guest is emulated: what takes seconds elsewhere takes minutes here. Ranks are processes of their
# own that import this file too.
digits.TRAIN_IMAGES = 512
ranks.SILENCE_MAX_S = 900
training.DEADLINES.update(join_timeout_ms=600_000, wait_timeout_ms=600_000)
READY_TIMEOUT_S = 120
WORKERS = 2
EPOCHS = 1
RDMA_BOX = ("--data.port=rdma", "--rdma.devices=rxe0 rxe2", "--pipeline.count=2",
            "--pipeline.pin=on", "--pipeline.cores=1,3", "--security.insecure=true",
            "--security.insecure_off_loopback=true")


def train(function, arguments, port):
    """Every rank's weights, by name, after training through a box of its own."""
    os.environ["PBOX_PORT"] = port
    with pbox.LocalBox(*arguments, ready_timeout_s=READY_TIMEOUT_S) as box:
        return ranks.run(function, WORKERS, EPOCHS, box.control, lambda reports: None)


class RdmaTraining(unittest.TestCase):

    def check(self, function, *modes):
        expected = train(function, (), "socket")[0]
        for mode in modes:
            for weights in train(function, (*RDMA_BOX, f"--rdma.mode={mode}"), "rdma:rxe1"):
                for name, tensor in weights.items():
                    # Of two ranks the order of arrival makes no difference.
                    self.assertTrue(numpy.array_equal(tensor, expected[name]), (mode, name))

    def test_gradients_that_the_box_averages(self):
        self.check(training.averaged_by_the_box, "send", "write_imm")

    def test_weights_that_the_box_holds(self):
        self.check(training.optimized_by_the_box, "write_imm")


if __name__ == "__main__":
    unittest.main(verbosity=2)

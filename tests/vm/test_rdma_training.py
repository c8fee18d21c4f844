"""In the guest: over RDMA devices the demo's training gives the same weights as over sockets, with
a box of two pipelines on two NUMA nodes, in both modes of jobs and of the box."""

import os
import pathlib
import re
import sys
import time
import unittest
import urllib.request

import numpy

import pbox

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "tools" / "demo_training"))
import digits
import ranks
import training

# The guest is emulated, and takes minutes for what takes seconds elsewhere. Most of them would go
# into imports of torch and other modules. Ranks are forks of this process, so that each module is
# imported once.
ranks.START_METHOD = "fork"
ranks.SILENCE_MAX_S = 900
training.DEADLINES.update(join_timeout_ms=600_000, wait_timeout_ms=600_000)
digits.TRAIN_IMAGES = 512
READY_TIMEOUT_S = 120
WORKERS = 2
EPOCHS = 1
JOBS = (training.averaged_by_the_box, training.optimized_by_the_box)
PIPELINES = 2
RDMA_BOX = ("--data.port=rdma", "--rdma.devices=rxe0 rxe2", f"--pipeline.count={PIPELINES}",
            "--pipeline.pin=on", "--pipeline.cores=1,3", "--security.insecure=true",
            "--security.insecure_off_loopback=true")


def say(text):
    print(f"{time.monotonic():8.1f} s  {text}", flush=True)


def counts(box, name):
    """Returns a counter's value for each pipeline."""
    with urllib.request.urlopen(f"http://{box.admin}/metrics", timeout=READY_TIMEOUT_S) as answer:
        page = answer.read().decode()
    return [int(value) for value in re.findall(rf"^{name}{{.*}} (\d+)$", page, re.MULTILINE)]


def train(arguments, port):
    """Trains each job through one box. Returns by job the weights of every rank, by name; then how
    many queue pairs each pipeline has had, and how many packets were written into its slots."""
    os.environ["PBOX_PORT"] = port
    weights = {}
    with pbox.LocalBox(*arguments, ready_timeout_s=READY_TIMEOUT_S) as box:
        for job in JOBS:
            assert len(os.listdir("/proc/self/task")) == 1, "the process that forks has threads"
            weights[job] = ranks.run(job, WORKERS, EPOCHS, box.control, lambda reports: None)
            say(f"{job.__name__} by {port}")
        return (weights, counts(box, "pbox_port_queue_pairs_total"),
                counts(box, "pbox_port_landed_packets_total"))


class RdmaTraining(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        say("imported")
        cls.expected, _, _ = train((), "socket")

    def check(self, mode):
        """Returns how many packets were written into slots, of each pipeline."""
        trained, queue_pairs, landed = train((*RDMA_BOX, f"--rdma.mode={mode}"), "rdma:rxe1")
        self.assertEqual(len(queue_pairs), PIPELINES)
        self.assertGreaterEqual(min(queue_pairs), WORKERS * len(JOBS))
        for job in JOBS:
            expected = self.expected[job][0]
            for weights in trained[job]:
                self.assertEqual(weights.keys(), expected.keys())
                for name, tensor in weights.items():
                    # With two ranks the order of arrival makes no difference.
                    self.assertTrue(numpy.array_equal(tensor, expected[name]),
                                    (job.__name__, name))
        return landed

    def test_weights_are_those_of_sockets_where_pushes_are_sent(self):
        self.assertEqual(self.check("send"), [0] * PIPELINES)

    def test_weights_are_those_of_sockets_where_pushes_are_written_into_slots(self):
        self.assertGreater(min(self.check("write_imm")), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)

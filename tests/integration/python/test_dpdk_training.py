"""The demo's training through a box with the DPDK port gives the same weights as training with
sockets: af_packet on a virtual cable, workers with kernel sockets."""

import ctypes
import os
import pathlib
import shlex
import subprocess
import sys
import unittest

import numpy

import pbox

TREE = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(TREE / "tools" / "demo_training"))
import ranks
import training

SKIPPED = 77  # SKIP_RETURN_CODE of the ctest
CLONE_NEWNET = 0x40000000
WORKERS = 2
EPOCHS = 1
# Sums in order of arrival differ in the last bit of a float, and training amplifies that.
DIFFERENCE_MAX = 1e-4


def enter_network():
    """Moves this process and its later children into a network namespace with a cable for a box,
    which ends with these processes. Returns the box's arguments and None; if there can be no such
    network, returns [] and the reason."""
    name = f"pbox-training-{os.getpid()}"
    script = (f". {shlex.quote(str(TREE / 'tools' / 'lib.sh'))}; "
              f"pbox_make_network {name} && printf '%s\\n' \"${{PBOX_NETWORK_BOX[@]}}\"")
    made = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    try:
        if made.returncode != 0:
            return [], "no network can be made: " + made.stderr.strip()
        with open(f"/var/run/netns/{name}", "rb") as network:
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET) != 0:
                return [], "cannot enter a network namespace: " + os.strerror(ctypes.get_errno())
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return made.stdout.splitlines(), None


def train(arguments):
    """Returns every rank's weights, by name, after training through a new box."""
    with pbox.LocalBox(*arguments) as box:
        return ranks.run(training.averaged_by_the_box, WORKERS, EPOCHS, box.control,
                         lambda reports: None)


class DpdkTraining(unittest.TestCase):

    def test_weights_are_those_of_sockets_over_one_queue_and_over_four(self):
        expected = train([])[0]
        for queues in (1, 4):
            with self.subTest(queues=queues):
                weights = train([*box_arguments, f"--pipeline.count={queues}",
                                 "--pipeline.pin=off"])
                for name, tensor in weights[0].items():
                    for other in weights[1:]:
                        self.assertTrue(numpy.array_equal(tensor, other[name]), name)
                    apart = numpy.abs(tensor - expected[name]).max()
                    self.assertLessEqual(apart, DIFFERENCE_MAX, name)


if __name__ == "__main__":
    if os.geteuid() != 0:
        impossible = "network namespaces need root"
    else:
        box_arguments, impossible = enter_network()
    if impossible is not None:
        print(f"skipped: {impossible}")
        sys.exit(SKIPPED)
    unittest.main()

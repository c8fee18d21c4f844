"""Runs torchft's tests of a process group, of its manager, and of LocalSGD and DiLoCo, from its
wheel, over the box.

  torchft_own_tests.py [unittest's arguments]

Each rank is a thread of this process. torchft's tests know the texts of gloo's and NCCL's errors;
those of the box name the rank that is gone, which is accepted too."""

import datetime
import os
import sys
import unittest

import torchft.local_sgd_integ_test
import torchft.manager_integ_test
import torchft.process_group_test
from parameterized import parameterized

import pbox
from pbox.torch.torchft import ProcessGroupPbox

torchft.manager_integ_test.ProcessGroupGloo = ProcessGroupPbox
torchft.local_sgd_integ_test.ProcessGroupGloo = ProcessGroupPbox
_COLLECTIVES = list(torchft.process_group_test._COLLECTIVE_TO_FUNC)


class CollectivesTest(torchft.process_group_test.MultiPgBaseTest):
    """Every collective over three ranks, and again after one of them has left."""

    WORLD_SIZE = 3

    @classmethod
    def _create_pg(cls, backend):
        return ProcessGroupPbox(timeout=datetime.timedelta(seconds=20))

    def assertRaisesRegex(self, kind, pattern, *arguments):
        pattern = rf"{pattern}|rank \d"
        return super().assertRaisesRegex(kind, pattern, *arguments)

    @parameterized.expand(_COLLECTIVES)
    def test_collective(self, collective):
        self._run_parallel(collective)

    @parameterized.expand(_COLLECTIVES)
    def test_collective_with_a_lost_rank(self, collective):
        self._run_with_resiliency(collective)


class ManagerTest(torchft.manager_integ_test.ManagerIntegTest):
    """torchft's manager trains replicas with DDP, and recovers those that fail."""


class LocalSgdTest(torchft.local_sgd_integ_test.LocalSGDIntegTest):
    """Replicas that exchange weights every few steps, and recover."""


def load_tests(loader, _tests, _pattern):
    """Tells unittest which tests there are. Leaves out those of the base classes, and those named
    upscale: in these a replica waits for a quorum that has ended, over gloo too."""
    return unittest.TestSuite(
        case(name) for case in (CollectivesTest, ManagerTest, LocalSgdTest)
        for name in loader.getTestCaseNames(case) if "upscale" not in name)


if __name__ == "__main__":
    with pbox.LocalBox() as box:
        os.environ["PBOX_BOX"] = box.control
        program = unittest.main(exit=False, verbosity=2)
    sys.exit(0 if program.result.wasSuccessful() else 1)

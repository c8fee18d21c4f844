"""Runs the tests of torch.distributed that torch's wheel contains, at two ranks over the backend
pbox: every group that asks for gloo gets it instead.

  pytorch_own_tests.py [unittest's arguments]    for example -k test_all_reduce_sum

Four tests ask for gloo by its name, and are left out. Prints how many of the others pass.
Most of the 285 need GPUs or another backend, and skip themselves."""

import multiprocessing
import os
import sys
import tempfile
import unittest

# Tests skip themselves by the name of the backend. They read it when they are loaded.
_FOLDER = tempfile.TemporaryDirectory(prefix="pbox-torch-")
os.environ.update(BACKEND="gloo", WORLD_SIZE="2", TEMP_DIR=_FOLDER.name,
                  INIT_METHOD=f"file://{_FOLDER.name}/init", GLOO_SOCKET_IFNAME="lo")

# pylint: disable=wrong-import-position
import torch
import torch.distributed as dist
from torch.testing._internal.distributed import distributed_test

import pbox
import pbox.torch

_ASK_FOR_GLOO = {"test_get_backend", "test_monitored_barrier_gloo",
                 "test_monitored_barrier_gloo_rank_0_timeout",
                 "test_monitored_barrier_gloo_subgroup"}


def _over_pbox(make_group):
    def make(*arguments, **keywords):
        if keywords.get("backend") == "gloo":
            keywords["backend"] = "pbox"
        return make_group(*("pbox" if argument == "gloo" else argument for argument in arguments),
                          **keywords)
    return make


dist.init_process_group = _over_pbox(dist.init_process_group)
dist.new_group = _over_pbox(dist.new_group)


class OverPbox(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """torch's tests. Each starts its ranks, forked from this process, which runs no threads."""

    def setUp(self):
        super().setUp()
        self._start_processes(multiprocessing.get_context("fork").Process)


def load_tests(loader, _tests, _pattern):
    """Tells unittest which tests there are."""
    suite = unittest.TestSuite()
    patterns = loader.testNamePatterns
    for name in loader.getTestCaseNames(OverPbox):
        if name not in _ASK_FOR_GLOO:
            suite.addTest(OverPbox(name))
    assert patterns is None or suite.countTestCases() > 0, f"no test is called {patterns}"
    return suite


if __name__ == "__main__":
    torch.set_num_threads(1)
    with pbox.LocalBox() as box:
        os.environ["PBOX_BOX"] = box.control
        program = unittest.main(exit=False, verbosity=2)
    result = program.result
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - len(result.skipped) - failed} pass, {failed} fail, "
          f"{len(result.skipped)} are not for this backend, host or number of ranks")
    sys.exit(0 if result.wasSuccessful() else 1)

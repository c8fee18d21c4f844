"""Jobs with models other than bsp go on after a broken connection, a dead process and a lost box.

Each gradient is -1 and the learning rate 1, so the weights count the pushes."""

import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

import numpy

import pbox
from support import BoxTestCase, program, wait_for_file

ELEMENTS = 700_000  # 87 chunks
MODELS = {
    "asp": {"sync": "asp"},
    "ssp": {"sync": "ssp", "staleness": 2},
    "ssp_cached": {"sync": "ssp", "staleness": 2, "reads": "cached"},
    "essp": {"sync": "essp", "staleness": 2},
    "pssp": {"sync": "pssp", "staleness": 2, "sync_probability": 0.5},
}


def count_pushes(options, rounds, mark_at=0, marker=None, stop_at=None):
    """Pushes until the tensor has had `rounds` rounds of this rank. Before round `mark_at` touches
    the file whose name is `marker` and the rank. At round `stop_at` waits to be killed. Returns the
    weights that this process began with, those that hold all pushes, and its statistics."""
    weights = numpy.zeros(ELEMENTS, dtype=numpy.float32)
    ones = numpy.ones_like(weights)
    with pbox.Client(mode="optimize", reduction="sum", recovery="none", **options) as client:
        tensor = client.register("weights", weights)
        client.set_optimizer("sgd", 1.0)
        client.join()
        client.init_weights(tensor, weights)
        client.wait(tensor)
        begun_with = weights.copy()
        while client.tensor_round(tensor) <= rounds:
            if client.tensor_round(tensor) == mark_at:
                pathlib.Path(f"{marker}{client.rank}").touch()
            while client.tensor_round(tensor) == stop_at:
                time.sleep(1)
            client.push_pull(tensor, -ones, weights)
            client.wait(tensor)
        client.barrier()
        client.push_pull(tensor, 0 * ones, weights)  # the answer holds what was pushed before
        client.wait(tensor)
        if options.get("reads") == "cached" or options["sync"] == "essp":
            client.barrier()
            for _ in range(options["staleness"] + 1):  # a copy may be as old as the bound
                client.push_pull(tensor, 0 * ones, weights)
                client.wait(tensor)
        statistics = client.statistics()
        client.barrier()
    return begun_with, weights, statistics


class SurvivalTest(BoxTestCase):
    def check_count(self, weights, count):
        self.assertEqual((weights.min(), weights.max()), (count, count))

    def test_ranks_go_on_by_their_clocks_after_their_connections_broke(self):
        rounds = 300
        box = pbox.LocalBox("--control.heartbeat_interval_ms=100",
                            "--control.worker_dead_after_ms=500")
        self.addCleanup(box.close)
        for name, model in MODELS.items():
            with self.subTest(name):
                marker = self.temporary_path("begun")
                ranks = self.start_ranks(count_pushes, 2, rounds, 10, marker, box=box.control,
                                         job=name, **model)
                wait_for_file(marker + "0")
                wait_for_file(marker + "1")
                box.process.send_signal(signal.SIGSTOP)
                time.sleep(1.5)  # the ranks count the box as lost, and close their connections
                box.process.send_signal(signal.SIGCONT)
                for rank in range(2):
                    _, weights, statistics = ranks.result(rank)
                    self.check_count(weights, 2 * rounds)
                    self.assertGreater(statistics["recoveries"], 0)

    def test_a_new_process_goes_on_where_a_dead_one_was(self):
        rounds = 60
        for name in ("asp", "ssp", "pssp"):
            with self.subTest(name):
                options = {"job": name, "lost_timeout_ms": 60000, **MODELS[name]}
                marker = self.temporary_path("begun")
                others = self.start_ranks(count_pushes, 2, rounds, 20, marker, 30, **options)
                wait_for_file(marker + "1")
                others.kill(1)
                others.kill(0)
                second = self.start_ranks(count_pushes, 2, rounds, rejoin=True, **options)
                results = [second.result(rank) for rank in range(2)]
                for begun_with, weights, _ in results:
                    self.assertGreaterEqual(begun_with.min(), 20)
                    self.check_count(weights, 2 * rounds)

    def test_a_job_begins_with_a_snapshot_of_one_that_ran_under_ssp(self):
        folder = tempfile.TemporaryDirectory(prefix="pbox-test-")
        self.addCleanup(folder.cleanup)
        flag = f"--snapshots.directory={folder.name}"
        marker = self.temporary_path("begun")
        options = {"job": "kept", **MODELS["ssp"]}
        with pbox.LocalBox(flag) as box:
            ranks = self.start_ranks(count_pushes, 2, 10**6, 20, marker, box=box.control, **options)
            wait_for_file(marker + "1")
            taken = subprocess.run([program("pboxctl"), "snapshot", "kept", "--admin", box.admin],
                                   capture_output=True, text=True)
            self.assertEqual(taken.returncode, 0, taken.stderr)
            for rank in range(2):
                ranks.kill(rank)
        box = pbox.LocalBox(flag)
        self.addCleanup(box.close)
        for again in (MODELS["ssp"], {"sync": "bsp"}):
            results = self.run_ranks(count_pushes, 2, 10, box=box.control, job="kept",
                                     restore="latest", **again)
            for begun_with, weights, statistics in results:
                steps = statistics["restored_steps"]
                self.assertGreaterEqual(steps, 20)
                # The weights hold all pushes of the rounds before the cut. A chunk may be copied as
                # late as at the slower rank's next push, when the faster rank may be `staleness`
                # pushes ahead.
                self.assertGreaterEqual(begun_with.min(), 2 * steps)
                self.assertLessEqual(begun_with.max(), 2 * (steps + 1) + MODELS["ssp"]["staleness"])
                self.assertEqual(list(weights), list(begun_with + 20))


if __name__ == "__main__":
    unittest.main()

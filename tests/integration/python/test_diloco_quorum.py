"""DiLoCo with a quorum: ranks that are late, stopped, killed or restarted delay no other rank."""

import os
import pathlib
import signal
import time
import unittest

import torch

import pbox.torch
from support import BoxTestCase, Ranks, wait_for_file
from test_diloco import WORKERS, inner_step, make_wide_model, open_diloco


def train_with_a_quorum(options, case, folder):
    """Trains until FOLDER/stop exists, and touches FOLDER/RANK-N after N periods. N continues the
    count of a former process of the rank. Returns how many changes each period had, and the number
    of steps at the beginning."""
    # A small model's parameters are not compressed.
    model, inner, diloco = open_diloco(options, case, make_wide_model() if "wire" in case else None)
    begun_at = diloco.steps
    counts = []
    before = len(list(pathlib.Path(folder).glob(f"{options['rank']}-*")))
    stop = pathlib.Path(folder, "stop")
    with diloco:
        while not stop.exists():
            inner_step(model, inner, diloco.steps, options["rank"])
            time.sleep(0.002)
            if diloco.steps % case["sync_every"] == 0:
                counts.append(diloco.contributors())
                pathlib.Path(folder, f"{options['rank']}-{before + len(counts)}").touch()
    return counts, begun_at


def come_as_rank_2(options, case, folder):
    return train_with_a_quorum({**options, "rank": 2}, case, folder)


def train_for_periods(options, case, folder):
    """Trains for two periods, and as rank 0 for four more once the others have left. Returns how
    many changes the last period had."""
    model, inner, diloco = open_diloco(options, case)
    rank = options["rank"]
    with diloco:
        diloco.client.barrier()
        for period in range(2 if rank > 0 else 6):
            if period == 2:
                for other in (1, 2):
                    wait_for_file(os.path.join(folder, str(other)))
            for _ in range(case["sync_every"]):
                inner_step(model, inner, diloco.steps, rank)
        count = diloco.contributors()
    if rank > 0:
        pathlib.Path(folder, str(rank)).touch()
    return count


def push_late(options, case, folder, width=1):
    """The quorum is 1. Rank 1 sends its change after rank 0 has taken an outer step, and rank 0
    sends its next change after that. Returns the weight after each outer step of this rank, of
    `width` squared weights that are all the same."""
    model = torch.nn.Linear(width, width, bias=False)
    torch.nn.init.zeros_(model.weight)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    results = []
    with pbox.torch.DiLoCo(model, inner, **case, **options) as diloco:

        def push(change, tokens):
            model.weight.grad = torch.full_like(model.weight, change)
            if case.get("weight") == "tokens":
                diloco.add_tokens(tokens)
            inner.step()
            results.append(model.weight[0, 0].item())

        if options["rank"] == 0:
            push(1.0, 7)
            pathlib.Path(folder, "first").touch()
            wait_for_file(os.path.join(folder, "late"))
            push(4.0, 1)
        else:
            wait_for_file(os.path.join(folder, "first"))
            push(2.0, 3)
            pathlib.Path(folder, "late").touch()
        diloco.client.barrier()
    return results


class DilocoQuorumTest(BoxTestCase):
    def test_with_a_quorum_nobody_waits_for_a_rank_that_is_stopped_or_killed(self):
        self.stop_and_kill({"sync_every": 6, "fragments": 2, "delay": 1, "quorum": 2, "grace": 20})

    def stop_and_kill(self, case):
        """Trains with three ranks while rank 2 is stopped, and killed and started again."""
        folder = self.folder()
        ranks = self.start_ranks(train_with_a_quorum, 3, case, folder)
        wait_for_file(os.path.join(folder, "2-2"))
        os.kill(ranks.processes[2].pid, signal.SIGSTOP)
        # Rank 2 continues long before the box would count it as lost.
        for rank in (0, 1):
            self.wait_for_more(folder, rank, 8)
        os.kill(ranks.processes[2].pid, signal.SIGCONT)
        self.wait_for_more(folder, 2, 4)
        ranks.kill(2)
        for rank in (0, 1):
            self.wait_for_more(folder, rank, 8)
        again = Ranks(come_as_rank_2, 1, self.options(3), ({**case, "rejoin": True}, folder))
        self.addCleanup(again.close)
        self.wait_for_more(folder, 2, 8)
        pathlib.Path(folder, "stop").touch()
        results = [ranks.result(0), ranks.result(1), again.result(0)]
        for counts, _ in results[:2]:
            self.assertIn(2, counts)  # without rank 2
            self.assertIn(3, counts)
        self.assertIn(3, results[2][0])
        self.assertGreater(results[2][1], 8 * case["sync_every"])

    def test_changes_in_blocks_reach_ranks_in_time_and_late_ones(self):
        # Rank 0 is in time in both outer steps. Rank 1 is late once, and receives the weights.
        for wire in ("q8", "q4"):
            for late, weight, second in (("next", "equal", -1.0 - (4.0 + 2.0) / 2),
                                         ("next", "tokens", -1.0 - (1 * 4.0 + 3 * 2.0) / 4),
                                         ("drop", "equal", -1.0 - 4.0)):
                case = {"sync_every": 1, "quorum": 1, "grace": 0, "late_pushes": late,
                        "weight": weight, "wire": wire, "outer": {"lr": 1.0, "momentum": 0}}
                job = f"{wire}-{late}-{weight}"
                folder = self.folder(job)
                weights, late_weights = self.run_ranks(push_late, WORKERS, case, folder, 128,
                                                       job=job)
                with self.subTest(job):
                    # q8 rounds 1, 2, 3 and 4 by at most 1/126 of the value. In q4 they are whole
                    # steps.
                    self.assertAlmostEqual(weights[0], -1.0, delta=0.1)
                    self.assertAlmostEqual(weights[1], second, delta=0.1)
                    self.assertEqual(late_weights, weights[:1])

    def test_ranks_that_are_stopped_or_killed_go_on_in_blocks(self):
        self.stop_and_kill({"sync_every": 6, "fragments": 2, "delay": 1, "quorum": 2, "grace": 20,
                            "wire": "q8"})

    def test_ranks_that_have_left_do_not_count_for_the_quorum(self):
        case = {"sync_every": 2, "fragments": 1, "delay": 0, "quorum": 2, "grace": 10}
        counts = self.run_ranks(train_for_periods, 3, case, self.folder())
        self.assertEqual(counts[0], 1)

    def wait_for_more(self, folder, rank, periods):
        """Waits until the rank has finished `periods` more periods."""
        done = len(list(pathlib.Path(folder).glob(f"{rank}-*")))
        wait_for_file(os.path.join(folder, f"{rank}-{done + periods}"))

    def test_changes_that_are_late_count_in_the_next_outer_step(self):
        # Rank 0 sends the changes 1 and 4. Rank 1 sends 2, too late for the first outer step.
        for late, second in (("next", -1.0 - (4.0 + 2.0) / 2), ("drop", -1.0 - 4.0)):
            case = {"sync_every": 1, "quorum": 1, "grace": 0, "late_pushes": late,
                    "outer": {"lr": 1.0, "momentum": 0}}
            folder = self.folder(late)
            weights, _ = self.run_ranks(push_late, WORKERS, case, folder, job=late)
            self.assertEqual(weights, [-1.0, second])

    def folder(self, name="folder"):
        path = self.temporary_path(name)
        os.mkdir(path)
        return path


if __name__ == "__main__":
    unittest.main()

"""DiLoCo and LocalSGD against the published algorithm in one process; lost boxes and ranks, a
restart from a checkpoint, and how many bytes are sent."""

import copy
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest
import warnings

import numpy
import torch

import pbox
import pbox.torch
from pbox.torch.diloco import divide
from support import (BoxTestCase, Ranks, free_port, make_model, program, shard_loss, shorten_waits,
                     wait_for_file, weights_of)

WORKERS = 2
# An outer step rounds five values below 1: the change, the mean, the momentum, the step and the
# blend. Each rounding changes a value by at most 2^-24.
ROUNDING = 5 * 2.0**-24


def inner_optimizer(model, momentum=0.5):
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=momentum)


def inner_step(model, optimizer, step, rank):
    optimizer.zero_grad()
    shard_loss(model, step, rank).backward()
    optimizer.step()


def open_diloco(options, case, model=None, **more):
    """Returns a model, its inner optimizer, and DiLoCo over both."""
    model = model or make_model()
    inner = inner_optimizer(model)
    return model, inner, pbox.torch.DiLoCo(model, inner, **case, **more, **options)


def train(options, steps, case, make=make_model):
    """Returns this rank's weights after the steps, and how many bytes it has pushed."""
    model, inner, diloco = open_diloco(options, case, make())
    with diloco:
        for step in range(1, steps + 1):
            inner_step(model, inner, step, options["rank"])
        diloco.client.barrier()
        pushed = diloco.client.statistics()["bytes_pushed"]
    return weights_of(model), pushed


def train_cases(options, steps, cases):
    return [train({**options, "job": f"{options['job']}-{index}"}, steps, case)[0]
            for index, case in enumerate(cases)]


def oracle(steps, sync_every, fragments=1, delay=0, alpha=0.0, outer=None, take_step=inner_step,
           mean=lambda changes, step: sum(changes) / WORKERS):
    """Streaming DiLoCo, algorithm 2, in one process. With one fragment, no delay and alpha 0 it is
    DiLoCo, algorithm 1. `mean(changes, step)` averages the changes, by rank, that are sent after a
    step. Returns all workers' weights."""
    models = [make_model() for _ in range(WORKERS)]
    inner = [inner_optimizer(model) for model in models]
    outer_model = make_model()
    parameters = list(outer_model.parameters())
    sizes = [parameter.numel() for parameter in parameters]
    options = {"lr": 0.7, "momentum": 0.9, "nesterov": True, **(outer or {})}
    groups = [[parameters[position] for position in positions]
              for positions in divide(sizes, fragments)]
    steppers = [torch.optim.SGD(group, **options) for group in groups]
    places = {id(parameter): position for position, parameter in enumerate(parameters)}
    own = [list(model.parameters()) for model in models]
    sent = {}
    for step in range(1, steps + 1):
        for rank, model in enumerate(models):
            take_step(model, inner[rank], step, rank)
        with torch.no_grad():
            for fragment, group in enumerate(groups):
                adopts_at = (fragment + 1) * sync_every // fragments
                if (step + delay - adopts_at) % sync_every == 0 and step + delay >= adopts_at:
                    sent[fragment] = [mean([parameter - own[rank][places[id(parameter)]]
                                            for rank in range(WORKERS)], step)
                                      for parameter in group]
                if (step - adopts_at) % sync_every == 0 and fragment in sent:
                    for parameter, change in zip(group, sent.pop(fragment)):
                        parameter.grad = change
                    steppers[fragment].step()
                    for parameter in group:
                        for rank in range(WORKERS):
                            mine = own[rank][places[id(parameter)]]
                            mine.copy_(alpha * mine + (1 - alpha) * parameter)
    return [weights_of(model) for model in models]


def average(options, steps):
    model = make_model()
    inner = inner_optimizer(model)
    with pbox.torch.LocalSGD(model, inner, sync_every=steps, **options):
        for step in range(1, steps + 1):
            inner_step(model, inner, step, options["rank"])
    return weights_of(model)


def make_wide_model():
    """Returns a model nearly all of whose elements are compressed."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 2000), torch.nn.Tanh(), torch.nn.Linear(2000, 4))


def train_over_a_pause(options, steps, case, pause_after, folder):
    """Touches FOLDER/RANK after a step, and continues once FOLDER/go exists."""
    model, inner, diloco = open_diloco(options, case)
    with diloco:
        for step in range(1, steps + 1):
            inner_step(model, inner, step, options["rank"])
            if step == pause_after:
                pathlib.Path(folder, str(options["rank"])).touch()
                wait_for_file(os.path.join(folder, "go"))
        recoveries = diloco.client.statistics()["recoveries"]
        diloco.client.barrier()
    return weights_of(model), recoveries


def train_until_together(options, case, folder, doomed=None):
    """Trains until both ranks have been in all results of the last 4 periods. Rank `doomed` stops
    after 2 periods and waits to be killed. Returns the box's last weights, how many ranks each
    period had, and the number of steps at the beginning."""
    model, inner, diloco = open_diloco(options, case)
    begun_at = diloco.steps
    counts = []
    while counts[-4:] != [2] * 4:
        inner_step(model, inner, diloco.steps, options["rank"])
        if diloco.steps % case["sync_every"] == 0:
            counts.append(diloco.contributors())
            pathlib.Path(folder, f"{options['rank']}-{len(counts)}").touch()
        while options["rank"] == doomed and len(counts) == 2:
            time.sleep(1)
    diloco.synchronize()
    weights = weights_of(model)
    diloco.close()
    return weights, counts, begun_at


def come_as_rank_1(options, case, folder):
    return train_until_together({**options, "rank": 1}, case, folder)


def train_through_exclusion(options, case, folder):
    """Trains until rank 1 was excluded, has come back, and both ranks have been in all results of
    the last 4 periods. Returns the box's last weights, how many ranks each period had, and the
    errors that ended a DiLoCo."""
    model = make_model()
    counts, errors = [], []

    def is_done():
        was_out = errors if options["rank"] == 1 else 1 in counts
        return was_out and counts[-4:] == [2] * 4

    while not is_done():
        model, inner, diloco = open_diloco({**options, "rejoin": len(errors) > 0}, case, model)
        try:
            with diloco:
                while not is_done():
                    inner_step(model, inner, diloco.steps, options["rank"])
                    if diloco.steps % case["sync_every"] == 0:
                        counts.append(diloco.contributors())
                        pathlib.Path(folder, f"{options['rank']}-{len(counts)}").touch()
                    time.sleep(0.01)
                diloco.synchronize()
        except pbox.WorkerLost as error:
            errors.append(str(error))
            counts.clear()
    return weights_of(model), counts, errors


def train_with_a_restart(options, steps, stop_after, case, folder):
    """Saves after a step, touches FOLDER/RANK, and once FOLDER/go exists leaves the job. Then
    touches FOLDER/left-RANK, and once FOLDER/again exists goes on with new objects from the newest
    snapshot."""
    model, inner, diloco = open_diloco(options, case)
    with diloco:
        for step in range(1, stop_after + 1):
            inner_step(model, inner, step, options["rank"])
        saved = model.state_dict(), inner.state_dict(), diloco.state_dict()
        saved = copy.deepcopy(saved)
        diloco.client.barrier()
        pathlib.Path(folder, str(options["rank"])).touch()
        wait_for_file(os.path.join(folder, "go"))
    pathlib.Path(folder, f"left-{options['rank']}").touch()
    wait_for_file(os.path.join(folder, "again"))
    model = make_model(seed=options["rank"] + 1)  # as a new process may begin
    model.load_state_dict(saved[0])
    model, inner, diloco = open_diloco(options, case, model, state=saved[2], restore="latest")
    inner.load_state_dict(saved[1])
    with diloco:
        for step in range(stop_after + 1, steps + 1):
            inner_step(model, inner, step, options["rank"])
        diloco.client.barrier()
    return weights_of(model)


def train_late(options, case):
    """Rank 1 begins its exchange only after rank 0 has timed out. Returns the weights, the number
    of time-outs, and the number of steps that the inner optimizer has taken."""
    model, inner, diloco = open_diloco(options, case, wait_timeout_ms=30000)
    if options["rank"] == 0:
        shorten_waits(diloco.client, 200)
    timeouts = 0
    with diloco:
        for step in range(1, case["sync_every"] + 1):
            if step == case["sync_every"] and options["rank"] == 1:
                diloco.client.barrier(timeout_ms=30000)
            inner.zero_grad()
            shard_loss(model, step, options["rank"]).backward()
            while True:
                try:
                    diloco.step()
                    break
                except pbox.Timeout:
                    timeouts += 1
                    if timeouts == 1:
                        diloco.client.barrier(timeout_ms=30000)
        diloco.client.barrier(timeout_ms=30000)
    return weights_of(model), timeouts, diloco.steps


class DilocoTest(BoxTestCase):
    def check(self, results, expected, outer_steps):
        for weights, wanted in zip(results, expected):
            for actual, one in zip(weights, wanted):
                self.assertLessEqual(numpy.abs(actual - one).max(), ROUNDING * outer_steps)

    def check_equal(self, results):
        for weights in results[1:]:
            for actual, first in zip(weights, results[0]):
                numpy.testing.assert_array_equal(actual, first)

    def folder(self):
        path = self.temporary_path("folder")
        os.mkdir(path)
        return path

    def test_weights_are_those_of_the_published_algorithm(self):
        steps = 48
        cases = [{"sync_every": every, "fragments": fragments, "delay": delay, "alpha": alpha}
                 for every in (1, 8, 24) for fragments in (1, 4) for delay in (0, 2)
                 for alpha in (0.0, 0.5) if fragments <= every and delay < every]
        cases += [{"sync_every": 7, "fragments": 3, "delay": 5, "alpha": 0.25},
                  {"sync_every": 6, "outer": {"lr": 0.5, "nesterov": False}},
                  {"sync_every": 6, "outer": {"lr": 1.0, "momentum": 0, "nesterov": False}}]
        self.check_cases(steps, cases)

    def test_a_quorum_of_all_ranks_is_the_published_algorithm(self):
        self.check_cases(48, [{"sync_every": every, "fragments": fragments, "delay": delay,
                               "alpha": 0.5, "quorum": WORKERS}
                              for every, fragments, delay in ((1, 1, 0), (8, 4, 2), (24, 4, 0))])

    def check_cases(self, steps, cases):
        results = self.run_ranks(train_cases, WORKERS, steps, cases)
        for index, case in enumerate(cases):
            published = {name: value for name, value in case.items() if name != "quorum"}
            with self.subTest(**case):
                self.check([result[index] for result in results], oracle(steps, **published),
                           steps // case["sync_every"])

    def test_local_sgd_gives_the_mean_of_the_weights(self):
        steps = 5
        models = [make_model() for _ in range(WORKERS)]
        for rank, model in enumerate(models):
            inner = inner_optimizer(model)
            for step in range(1, steps + 1):
                inner_step(model, inner, step, rank)
        means = [sum(each) / WORKERS for each in zip(*map(weights_of, models))]
        results = self.run_ranks(average, WORKERS, steps)
        self.check_equal(results)
        self.check(results, [means] * WORKERS, 1)

    def test_a_killed_box_changes_nothing(self):
        # No momentum, because a lone box that is killed loses it.
        case = {"sync_every": 6, "fragments": 3, "delay": 1,
                "outer": {"momentum": 0, "nesterov": False}}
        folder = self.folder()
        flag = f"--control.port={free_port()}"
        box = pbox.LocalBox(flag)
        # After step 13 a fragment is in flight.
        ranks = self.start_ranks(train_over_a_pause, WORKERS, 30, case, 13, folder,
                                 box=box.control, recover_timeout_ms=60000)
        for rank in range(WORKERS):
            wait_for_file(os.path.join(folder, str(rank)))
        box.process.kill()
        box.close()
        box = pbox.LocalBox(flag)
        self.addCleanup(box.close)
        pathlib.Path(folder, "go").touch()
        results = [ranks.result(rank) for rank in range(WORKERS)]
        for _, recoveries in results:
            self.assertGreater(recoveries, 0)
        self.check([weights for weights, _ in results], oracle(30, **case), 5)

    def test_a_new_process_takes_a_lost_rank_s_place_at_its_step(self):
        for case in ({"sync_every": 6, "fragments": 3, "delay": 1},
                     {"sync_every": 4, "fragments": 1, "delay": 0, "wire": "q8"}):
            with self.subTest(**case):
                folder = self.folder()
                options = {"job": f"replaced-{case['fragments']}", "on_worker_lost": "partial",
                           "lost_timeout_ms": 500}
                ranks = self.start_ranks(train_until_together, WORKERS, case, folder, 1,
                                         **options)
                wait_for_file(os.path.join(folder, "1-2"))
                ranks.kill(1)
                wait_for_file(os.path.join(folder, "0-6"))  # rank 0 trains alone
                self.check_newcomer(ranks, case, folder, rejoin=True, **options)

    def test_a_rank_that_was_stopped_is_left_behind_and_comes_back_by_itself(self):
        case = {"sync_every": 6, "fragments": 2, "delay": 1}
        folder = self.folder()
        box = pbox.LocalBox("--control.heartbeat_interval_ms=100",
                            "--control.worker_dead_after_ms=500")
        self.addCleanup(box.close)
        ranks = self.start_ranks(train_through_exclusion, WORKERS, case, folder, box=box.control,
                                 on_worker_lost="partial", lost_timeout_ms=500)
        wait_for_file(os.path.join(folder, "1-2"))
        stopped = ranks.processes[1].pid
        os.kill(stopped, signal.SIGSTOP)
        wait_for_file(os.path.join(folder, "0-8"))  # rank 0 trains alone
        os.kill(stopped, signal.SIGCONT)
        (lone, counts, errors), (stopped, _, its_errors) = [ranks.result(rank)
                                                            for rank in range(WORKERS)]
        self.assertEqual(errors, [])
        self.assertIn(1, counts)
        self.assertEqual(len(its_errors), 1)
        self.assertIn("start it again with rejoin", its_errors[0])
        self.check_equal([lone, stopped])

    def test_a_rank_that_comes_later_begins_at_the_step_of_the_others(self):
        case = {"sync_every": 6, "fragments": 2, "delay": 2, "alpha": 0.5}
        folder = self.folder()
        options = {"on_worker_lost": "partial", "min_world_size": 1}
        first = Ranks(train_until_together, 1, self.options(WORKERS, **options), (case, folder))
        self.addCleanup(first.close)
        wait_for_file(os.path.join(folder, "0-6"))
        self.check_newcomer(first, case, folder, **options)

    def check_newcomer(self, ranks, case, folder, **options):
        """Starts rank 1 as a new process, and checks that it trains with rank 0 of `ranks`, which
        was alone in some results before."""
        again = Ranks(come_as_rank_1, 1, self.options(WORKERS, **options), (case, folder))
        self.addCleanup(again.close)
        lone, counts, _ = ranks.result(0)
        new, new_counts, begun_at = again.result(0)
        self.assertIn(1, counts)
        self.assertEqual(new_counts[-4:], [2] * 4)
        self.assertGreaterEqual(begun_at, 5 * case["sync_every"])
        self.check_equal([lone, new])

    def test_a_checkpoint_and_a_snapshot_go_on_as_if_nothing_had_happened(self):
        case = {"sync_every": 6, "fragments": 2}
        folder, snapshots = self.folder(), tempfile.TemporaryDirectory(prefix="pbox-test-")
        self.addCleanup(snapshots.cleanup)
        flags = f"--snapshots.directory={snapshots.name}", f"--control.port={free_port()}"
        box = pbox.LocalBox(*flags)
        ranks = self.start_ranks(train_with_a_restart, WORKERS, 24, 12, case, folder, job="kept",
                                 box=box.control)
        for rank in range(WORKERS):
            wait_for_file(os.path.join(folder, str(rank)))
        taken = subprocess.run([program("pboxctl"), "snapshot", "kept", "--admin", box.admin],
                               capture_output=True, text=True)
        self.assertEqual(taken.returncode, 0, taken.stderr)
        pathlib.Path(folder, "go").touch()
        for rank in range(WORKERS):
            wait_for_file(os.path.join(folder, f"left-{rank}"))
        box.close()
        box = pbox.LocalBox(*flags)
        self.addCleanup(box.close)
        pathlib.Path(folder, "again").touch()
        results = [ranks.result(rank) for rank in range(WORKERS)]
        self.check(results, oracle(24, **case), 4)

    def test_a_checkpoint_holds_what_was_in_flight(self):
        model, inner, diloco = open_diloco({"rank": 0, **self.options(1)},
                                           {"sync_every": 4, "delay": 2, "outer": {"lr": 1.0}})
        with diloco:
            for step in range(1, 3):
                inner_step(model, inner, step, 0)
            state = diloco.state_dict()
            self.assertEqual(set(state["pending"]), set(state["anchors"]))
            for step in range(3, 5):
                inner_step(model, inner, step, 0)
            for name, parameter in model.named_parameters():
                saved = state["anchors"][name].view_as(parameter)
                self.assertTrue(torch.equal(saved, parameter.detach()), name)
        again = make_model(seed=5)
        _, _, diloco = open_diloco({"rank": 0, **self.options(1, job="again")}, {"sync_every": 4},
                                   again, state=state)
        with diloco:
            self.check_equal([weights_of(model), weights_of(again)])

    def test_compressed_changes_reach_nearly_the_same_weights(self):
        steps, case = 24, {"sync_every": 1, "outer": {"lr": 0.1, "momentum": 0}}
        exact, full_bytes = self.run_ranks(train, 1, steps, case, make_wide_model,
                                           job="f32")[0]
        for wire, least, tolerance in (("q8", 2.5, 1e-3), ("q4", 3.5, 2e-2)):
            with self.subTest(wire):
                weights, pushed = self.run_ranks(train, 1, steps, {**case, "wire": wire},
                                                 make_wide_model, job=wire)[0]
                self.assertGreater(full_bytes / pushed, least)
                for actual, wanted in zip(weights, exact):
                    numpy.testing.assert_allclose(actual, wanted, atol=tolerance, rtol=0)

    def test_step_after_a_timeout_only_waits(self):
        case = {"sync_every": 3}
        results = self.run_ranks(train_late, WORKERS, case)
        self.assertGreater(results[0][1], 0)
        self.assertEqual([steps for _, _, steps in results], [3, 3])
        self.check([weights for weights, _, _ in results], oracle(3, **case), 1)

    def test_schedulers_and_scalers_step_the_inner_optimizer_as_ever(self):
        model = make_model()
        inner = inner_optimizer(model)
        before = torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
        scaler = torch.cuda.amp.GradScaler(enabled=False)
        with pbox.torch.DiLoCo(model, inner, sync_every=2, rank=0, **self.options(1)) as diloco:
            after = torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                for step in range(4):
                    inner.zero_grad()
                    scaler.scale(shard_loss(model, step, 0)).backward()
                    scaler.step(inner)
                    before.step()
                    after.step()
            self.assertEqual(diloco.steps, 4)
            self.assertAlmostEqual(inner.param_groups[0]["lr"], 0.2 * 0.5**8)
        inner_step(model, inner, 5, 0)
        self.assertEqual(diloco.steps, 4)

    def test_parameters_of_16_bits_keep_what_the_box_knows_of_them(self):
        model = make_model().to(torch.bfloat16)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        with pbox.torch.DiLoCo(model, inner, sync_every=1, rank=0, outer={"lr": 0.25},
                               **self.options(1)) as diloco:
            anchors = diloco.state_dict()["anchors"]
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 2.0**-4)
            inner.step()
            for name, parameter in model.named_parameters():
                newest = diloco.state_dict()["anchors"][name]
                self.assertEqual(newest.dtype, torch.float32)
                self.assertFalse(torch.equal(newest, anchors[name]))
                self.assertTrue(torch.equal(newest.to(torch.bfloat16).view_as(parameter),
                                            parameter.detach()))

    def test_errors_name_the_argument_and_its_value(self):
        cases = [({"sync_every": 0}, "sync_every is 0"),
                 ({"sync_every": 2, "fragments": 3}, "fragments is 3"),
                 ({"sync_every": 9, "fragments": 7}, "fragments is 7, but the model has 6"),
                 ({"sync_every": 2, "delay": 2}, "delay is 2"),
                 ({"sync_every": 2, "alpha": 1.0}, "alpha is 1.0"),
                 ({"sync_every": 2, "wire": "bf16"}, "wire is 'bf16'"),
                 ({"sync_every": 2, "outer": {"lr": 0}}, "outer lr is 0"),
                 ({"sync_every": 2, "outer": {"momentum": 1}}, "outer momentum is 1"),
                 ({"sync_every": 2, "outer": {"betas": 1}}, "outer has 'betas'"),
                 ({"sync_every": 2, "sync": "ssp"}, "sync is 'ssp'"),
                 ({"sync_every": 2, "compression": "q8"}, "DiLoCo sets compression itself"),
                 ({"sync_every": 2, "grace_ms": 5}, "sets grace_ms itself; leave it out, and give"),
                 ({"sync_every": 2, "grace": 5}, "grace is 5, but without a quorum"),
                 ({"sync_every": 2, "quorum": 0}, "quorum is 0"),
                 ({"sync_every": 2, "quorum": 2}, "quorum 2 must be at most world_size 1"),
                 ({"sync_every": 2, "quorum": 1, "grace": "late"}, "grace_ms is 'late'"),
                 ({"sync_every": 2, "state": {"anchors": {}, "pending": []}},
                  "state has no weights of 0.weight")]
        for case, text in cases:
            with self.subTest(text), self.assertRaisesRegex(pbox.InvalidArgument, text):
                open_diloco({"rank": 0, **self.options(1)}, case)
        model = make_model()
        with self.assertRaisesRegex(pbox.InvalidArgument, "no outer optimizer"):
            pbox.torch.LocalSGD(model, inner_optimizer(model), sync_every=1, outer={})

    def test_fragments_are_of_about_the_same_size(self):
        self.assertEqual(divide([1, 1, 1, 1], 2), [range(0, 2), range(2, 4)])
        self.assertEqual(divide([8, 1, 1, 1], 2), [range(0, 1), range(1, 4)])
        self.assertEqual(divide([1, 1, 8], 3), [range(0, 1), range(1, 2), range(2, 3)])
        generator = numpy.random.default_rng(1)
        for count in range(1, 20):
            sizes = generator.integers(1, 1000, 40).tolist()
            groups = divide(sizes, count)
            self.assertEqual([place for group in groups for place in group], list(range(40)))
            totals = [sum(sizes[place] for place in group) for group in groups]
            self.assertGreater(min(totals), 0)
            self.assertLessEqual(max(totals), sum(sizes) / count + max(sizes))


if __name__ == "__main__":
    unittest.main()

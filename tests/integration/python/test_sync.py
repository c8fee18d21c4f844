"""Consistency models from Python: each one learns a small problem while one rank is slower."""

import os
import pathlib
import subprocess
import time
import unittest

import numpy
import torch

import pbox
import pbox.torch
from support import BoxTestCase

BUILD_FOLDER = pathlib.Path(os.environ["PBOX_BUILD_DIR"]).resolve()
STEPS = 40
WORLD_SIZE = 2
SLOW_S = 0.004  # rank 1's additional time per step, in seconds
MODELS = {
    "bsp": {},
    "asp": {"sync": "asp"},
    "ssp": {"sync": "ssp", "staleness": 3},
    "ssp_lazy": {"sync": "ssp", "staleness": 3, "release": "lazy"},
    "ssp_cached": {"sync": "ssp", "staleness": 3, "reads": "cached"},
    "essp": {"sync": "essp", "staleness": 3},
    "pssp": {"sync": "pssp", "staleness": 2, "sync_probability": 0.3},
    "dpssp": {"sync": "dpssp", "staleness": 2},
    "drop": {"sync": "drop", "quorum": 1},
    "adaptive": {"sync": "adaptive", "staleness": 4, "sync_probability": 0.2},
}


def make_problem(rank, count=64):
    """A linear map; each rank sees different samples of it."""
    generator = torch.Generator().manual_seed(7)
    truth = torch.randn(6, 2, generator=generator)
    generator.manual_seed(100 + rank)
    inputs = torch.randn(count, 6, generator=generator)
    return inputs, inputs @ truth


def train(options, chosen=("SGD", {"lr": 0.1})):
    """Returns the losses before and after training, and the client's statistics."""
    inputs, targets = make_problem(options["rank"])
    torch.manual_seed(options["rank"])
    model = torch.nn.Linear(6, 2)
    kind, values = chosen
    local = getattr(torch.optim, kind)(model.parameters(), **values)
    with pbox.torch.DistributedOptimizer(local, model, **options) as optimizer:
        losses = []
        for _ in range(STEPS):
            if options["rank"] == 1:
                time.sleep(SLOW_S)
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
        optimizer.synchronize()
        statistics = optimizer.client.statistics()
        optimizer.client.barrier()
    return losses[0], losses[-1], statistics


def read_own_pushes(options):
    """Returns the weights a lone rank reads after each push of 1 with learning rate 1."""
    weights = numpy.zeros(1000, dtype=numpy.float32)
    with pbox.Client(mode="optimize", reduction="sum", **options) as client:
        tensor = client.register("weights", weights)
        client.set_optimizer("sgd", 1.0)
        client.join()
        client.init_weights(tensor, weights)
        client.wait(tensor)
        read = []
        for _ in range(5):
            client.push_pull(tensor, numpy.full_like(weights, -1), weights)
            client.wait(tensor)
            read.append((weights.min(), weights.max()))
    return read


def train_mixed(options):
    """Trains the tensor "dense" with model bsp and the tensor "table" with model ssp:2, which rank
    0 changes to asp. Rank 0 returns how many pushes the table had before and after the change,
    while rank 1 had pushed nothing, and the errors of changes that are refused. Both ranks return
    the last weight of "dense"."""
    arrays = [numpy.zeros(1000, dtype=numpy.float32) for _ in range(2)]
    ones = numpy.ones(1000, dtype=numpy.float32)
    with pbox.Client(mode="optimize", reduction="sum", recovery="none", **options) as client:
        dense, table = (client.register(name, array)
                        for name, array in zip(("dense", "table"), arrays))
        client.set_sync("ssp:2", "tab*")
        client.set_optimizer("sgd", 1.0)
        client.join()
        for tensor, array in zip((dense, table), arrays):
            client.init_weights(tensor, array)
        client.wait_all()
        said = []

        def step(tensor, times=1):
            for _ in range(times):
                client.push_pull(tensor, -ones, arrays[tensor.id])
                client.wait(tensor)

        def refused(sync, tensors=None):
            try:
                client.set_sync(sync, tensors)
                said.append("accepted")
            except pbox.InvalidArgument as error:
                said.append(str(error))

        if client.rank == 0:
            step(table, 2)  # as far as the bound lets it; rank 1 has pushed nothing
            said.append(float(arrays[1][0]))
            client.set_sync("asp", "table")
            step(table, 3)
            said.append(float(arrays[1][0]))
            refused("asp", "dense")
            refused("ssp:1")
            refused("ssp:1", "missing")
            refused("ssp:3", "table")
        client.barrier()
        if client.rank == 1:
            step(table, 5)
        step(dense)  # both ranks: one round
        said.append(float(arrays[0][0]))
        client.barrier()
        return said


class SyncTest(BoxTestCase):
    def pboxctl(self, *words, status=0):
        """Runs pboxctl, which must end with this status, and returns what it prints."""
        done = subprocess.run([BUILD_FOLDER / "bin" / "pboxctl", *words, "--admin", self.box.admin],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout + done.stderr

    def test_tensors_have_models_of_their_own_which_change_while_the_job_runs(self):
        first, second = self.run_ranks(train_mixed, WORLD_SIZE, job="mixed")
        self.assertEqual(first[:2], [2.0, 5.0])
        self.assertRegex(first[2], "'dense'.* bsp, which cannot become asp while the job runs")
        self.assertRegex(first[3], "'dense'.* cannot become ssp:1")
        self.assertRegex(first[4], "no registered tensor matches 'missing'")
        self.assertEqual(first[5], "accepted")
        self.assertEqual(first[6], 2.0)
        self.assertEqual(second, [2.0])

    def test_an_operator_shows_and_changes_models(self):
        client, _ = self.registered("tensor", numpy.zeros(4, dtype=numpy.float32), mode="optimize",
                                    job="shown", sync="asp", recovery="none")
        client.set_optimizer("sgd", 0.1)
        client.join()
        self.assertIn("asp", self.pboxctl("sync", "shown"))
        self.assertRegex(self.pboxctl("sync", "shown", "ssp:3", "--tensors", "tens*"),
                         r"shown +asp\n +tensor +ssp:3")
        self.assertIn("pssp:2:0.5", self.pboxctl("sync", "shown", "pssp:2:0.5"))
        self.assertIn("no job on this box has adaptive", self.pboxctl("jobs", "--why"))
        self.assertIn("adaptive:1-4:0.5", self.pboxctl("sync", "shown", "adaptive:1-4:0.5"))
        self.assertRegex(self.pboxctl("jobs", "--why"), "shown part 0: pssp:1:1 after 0 decisions")
        self.assertIn("cannot become bsp", self.pboxctl("sync", "shown", "bsp", status=1))
        self.assertIn("as in ssp:3", self.pboxctl("sync", "shown", "ssp", status=2))
        self.assertIn("no job", self.pboxctl("sync", "absent", "asp", status=1))

    def test_a_module_gives_some_of_its_parameters_another_model(self):
        results = self.run_ranks(train, WORLD_SIZE, job="named", recovery="none",
                                 sync_by_tensor={"bias*": "ssp:2"})
        for first, last, statistics in results:
            self.assertLess(last, 0.1 * first)
            self.assertEqual(sum(statistics["reads_by_staleness"][3:]), 0)

    def test_a_problem_is_learned_under_every_model(self):
        for name, model in MODELS.items():
            with self.subTest(name):
                results = self.run_ranks(train, WORLD_SIZE, job=name, recovery="none", **model)
                for rank, (first, last, statistics) in enumerate(results):
                    self.assertLess(last, 0.1 * first)
                    # The weight and the bias, and the first read of each, which gives its initial
                    # value.
                    self.assertEqual(statistics["reads"], 2 * (STEPS + 1))
                    ages = statistics["reads_by_staleness"]
                    self.assertEqual(sum(ages), statistics["reads"])
                    if name in ("bsp", "drop"):
                        self.assertEqual(ages[0], statistics["reads"])
                    elif "ssp" in name and not name.endswith("pssp"):
                        self.assertEqual(sum(ages[4:]), 0)
                    if name in ("asp", "essp") and rank == 0:
                        self.assertLess(statistics["staleness_sum"], 0)

    def test_a_rank_reads_its_own_pushes_from_its_copy(self):
        for model in ("essp", "ssp_cached"):
            with self.subTest(model):
                options = self.options(1, job=model, rank=0, recovery="none", **MODELS[model])
                self.assertEqual(read_own_pushes(options), [(n, n) for n in range(1, 6)])

    def test_options_are_given_by_their_words(self):
        with self.assertRaisesRegex(pbox.InvalidArgument, "sync is 'tso'; it must be one of bsp"):
            self.client(sync="tso")
        with self.assertRaisesRegex(pbox.InvalidArgument, "release is 'early'"):
            self.client(release="early")
        with self.assertRaisesRegex(pbox.InvalidArgument, "reads is 'none'"):
            self.client(reads="none")
        with self.assertRaisesRegex(pbox.InvalidArgument, "staleness 65 must be at most 64"):
            self.client(sync="ssp", staleness=65)

    def test_essp_and_cached_reads_train_with_momentum_adam_and_weight_decay(self):
        optimizers = {"momentum": ("SGD", {"lr": 0.05, "momentum": 0.5}),
                      "decay": ("SGD", {"lr": 0.1, "weight_decay": 0.01}),
                      "adam": ("Adam", {"lr": 0.1})}
        for model in ("essp", "ssp_cached"):
            for name, chosen in optimizers.items():
                with self.subTest(model=model, optimizer=name):
                    results = self.run_ranks(train, WORLD_SIZE, chosen, job=f"{model}_{name}",
                                             recovery="none", **MODELS[model])
                    for first, last, statistics in results:
                        self.assertLess(last, 0.2 * first)
                        self.assertEqual(sum(statistics["reads_by_staleness"][4:]), 0)


if __name__ == "__main__":
    unittest.main()

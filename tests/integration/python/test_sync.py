"""Consistency models from Python: each one learns a small problem while one rank is slower."""

import time
import unittest

import numpy
import torch

import pbox
import pbox.torch
from support import BoxTestCase

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


class SyncTest(BoxTestCase):
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

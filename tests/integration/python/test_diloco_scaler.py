"""pbox.torch.DiLoCo with torch's GradScaler, which skips steps that overflow, and with a scheduler
that is older than it."""

import unittest
import warnings

import numpy
import torch

import pbox.torch
from support import BoxTestCase, make_model, shard_loss, weights_of
from test_diloco import WORKERS, inner_optimizer, open_diloco, oracle

STEPS, CASE = 6, {"sync_every": 3}


def train_with_overflows(options):
    """Rank 1's first and fourth batch overflow. Returns the weights and the number of batches."""
    model, inner, diloco = open_diloco(options, CASE)
    scaler = torch.cuda.amp.GradScaler(enabled=False)  # enabled, older torch needs a GPU
    batches = 0
    while diloco.steps < STEPS:
        inner.zero_grad()
        shard_loss(model, diloco.steps + 1, options["rank"]).backward()
        overflows = options["rank"] == 1 and batches in (0, 3)
        # An enabled GradScaler's step() calls this.
        scaler._maybe_opt_step(
            inner, {"found_inf_per_device": {"cpu": torch.tensor(float(overflows))}})
        batches += 1
    diloco.close()
    return weights_of(model), batches


class ScalerTest(BoxTestCase):
    def test_steps_that_a_scaler_skips_do_not_count_and_the_ranks_meet_all_the_same(self):
        results = self.run_ranks(train_with_overflows, WORKERS)
        self.assertEqual([batches for _, batches in results],
                         [STEPS + 2 * (rank == 1) for rank in range(WORKERS)])
        for (weights, _), wanted in zip(results, oracle(STEPS, **CASE)):
            for one, other in zip(weights, wanted):
                numpy.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)

    def test_scheduler_from_before_sees_the_steps(self):
        model = make_model()
        inner = inner_optimizer(model)
        scheduler = torch.optim.lr_scheduler.StepLR(inner, 1)
        diloco = pbox.torch.DiLoCo(model, inner, sync_every=2, rank=0, **self.options(1))
        self.addCleanup(diloco.close)
        shard_loss(model, 1, 0).backward()
        inner.step()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns of a scheduler that steps first
            scheduler.step()


if __name__ == "__main__":
    unittest.main()

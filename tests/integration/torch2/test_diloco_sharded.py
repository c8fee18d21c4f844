"""DiLoCo over learners of two processes each, among which FSDP2 has sharded the model."""

import unittest

import sharded_ranks
import test_diloco
import torch
import torch.distributed as dist
from support import BoxTestCase, make_model, shard_loss
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import pbox.torch

STEPS = 24
SHARDS = 2


def train(options, case, store):
    """Rank = learner * SHARDS + shard. Returns the learner's weights."""
    sharded_ranks.start(options, store, "gloo")
    learner, shard = divmod(options["rank"], SHARDS)
    mesh = init_device_mesh("cpu", (test_diloco.WORKERS, SHARDS),
                            mesh_dim_names=("learner", "shard"))
    model = make_model()
    for layer in model:
        fully_shard(layer, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    inner = test_diloco.inner_optimizer(model)
    of_shard = {**options, "job": f"{options['job']}-{shard}", "rank": learner,
                "world_size": test_diloco.WORKERS}
    with pbox.torch.DiLoCo(model, inner, **case, **of_shard) as diloco:
        for step in range(1, STEPS + 1):
            test_diloco.inner_step(model, inner, step, options["rank"])
        diloco.client.barrier()
    weights = [parameter.full_tensor().detach().numpy().copy() for parameter in model.parameters()]
    dist.barrier()
    dist.destroy_process_group()
    return weights


def learner_step(model, optimizer, step, learner):
    """FSDP2 averages the gradients of a learner's processes."""
    optimizer.zero_grad()
    for shard in range(SHARDS):
        (shard_loss(model, step, learner * SHARDS + shard) / SHARDS).backward()
    optimizer.step()


class ShardedDilocoTest(BoxTestCase):
    def test_weights_are_those_of_the_algorithm_with_whole_learners(self):
        for case in ({"sync_every": 8},
                     {"sync_every": 6, "fragments": 3, "delay": 1, "alpha": 0.5}):
            with self.subTest(**case):
                results = self.run_ranks(train, test_diloco.WORKERS * SHARDS, case,
                                         self.temporary_path("store"),
                                         job=f"every-{case['sync_every']}")
                expected = test_diloco.oracle(STEPS, **case, take_step=learner_step)
                by_rank = [expected[rank // SHARDS] for rank in range(len(results))]
                tolerance = test_diloco.ROUNDING * STEPS
                for weights, wanted in zip(results, by_rank, strict=True):
                    for actual, one in zip(weights, wanted, strict=True):
                        torch.testing.assert_close(torch.tensor(actual), torch.tensor(one),
                                                   atol=tolerance, rtol=0)


if __name__ == "__main__":
    unittest.main()

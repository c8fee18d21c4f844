"""Jobs whose number of ranks changes: DistributedOptimizer with min_world_size, and torchrun with a
range of nodes."""

import pathlib
import unittest

import numpy
import torch

import pbox.torch
from support import BoxTestCase, free_port, start_torchrun, wait_for_file


def trained(options, rank, begun, steps_together):
    """Trains until two ranks have been in `steps_together` steps. Returns the final weights, and
    the number of ranks that were in the first step."""
    torch.manual_seed(rank)
    model = torch.nn.Linear(300, 20, bias=False)  # one chunk, so a rank joins in a single step
    optimizer = pbox.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model, rank=rank, **options)
    counts = []
    while counts.count(2) < steps_together:
        optimizer.zero_grad()
        model(torch.full((8, 300), 1.0 + rank)).square().mean().backward()
        optimizer.step()
        optimizer.synchronize()
        counts.append(optimizer.contributors())
        if len(counts) == 20:
            pathlib.Path(begun + str(rank)).touch()
    weights = [parameter.detach().numpy().copy() for parameter in model.parameters()]
    optimizer.close()
    return weights, counts[0]


# The script trains alone until the second agent joins; then torchrun restarts the ranks. They read
# the number of steps from a file that rank 0 writes after each step.
RANGED = """
import os
import pathlib
import sys
import torch
import pbox.torch

folder = pathlib.Path(sys.argv[1])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
model = torch.nn.Linear(50, 10)
optimizer = pbox.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model)
kept = folder / "kept"
step = 0
if kept.exists():
    saved = torch.load(kept)
    step = saved["step"]
together = 0
while together < 20:
    optimizer.zero_grad()
    model(torch.ones(4, 50)).square().mean().backward()
    optimizer.step()
    optimizer.synchronize()
    step += 1
    together += 1 if size == 2 else 0
    if rank == 0:
        torch.save({"step": step}, folder / "new")
        os.replace(folder / "new", kept)
        if step == 20:
            (folder / "alone").touch()
(folder / f"done{rank}").write_text(f"{size} {step > 20}")
optimizer.close()
"""


class ElasticTest(BoxTestCase):
    def test_a_rank_joins_a_training_that_runs_and_ends_with_the_same_weights(self):
        begun = self.temporary_path("begun")
        options = {"min_world_size": 1, "on_worker_lost": "partial"}
        ranks = self.start_ranks(trained_alone_or_late, 2, begun, **options)
        (first, in_first), (second, in_last) = (ranks.result(rank) for rank in range(2))
        self.assertEqual((in_first, in_last), (1, 2))
        for ours, others in zip(first, second):
            numpy.testing.assert_array_equal(ours, others)


def trained_alone_or_late(options, begun):
    """Rank 0 begins. The other one joins when rank 0 has taken some steps."""
    options = dict(options)
    rank = options.pop("rank")
    if rank == 1:
        wait_for_file(begun + "0")
    return trained(options, rank, begun, 20)


class TorchrunRangeTest(BoxTestCase):
    def agent(self, script, port, folder, name):
        return start_torchrun(
            folder, port, "--nnodes=1:2", "--nproc_per_node=1", "--rdzv_id=range",
            f"--log_dir={folder / name}", str(script), str(folder), PBOX_BOX=self.box.control,
            PBOX_JOB="ranged")

    def test_torchrun_restarts_the_ranks_in_a_larger_job_when_a_node_comes(self):
        folder = pathlib.Path(self.temporary_path("range"))
        folder.mkdir()
        script = folder / "script.py"
        script.write_text(RANGED)
        port = free_port()
        agents = [self.agent(script, port, folder, "first")]
        self.addCleanup(lambda: [agent.kill() for agent in agents])
        wait_for_file(folder / "alone", 120)
        agents.append(self.agent(script, port, folder, "second"))
        for agent in agents:
            said, _ = agent.communicate(timeout=240)
            self.assertEqual(agent.returncode, 0, said)
        for rank in range(2):
            self.assertEqual((folder / f"done{rank}").read_text(), "2 True")


if __name__ == "__main__":
    unittest.main()

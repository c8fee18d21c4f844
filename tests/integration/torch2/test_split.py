"""dist.split_group over the backend pbox: groups of some ranks, used from several threads.

torch splits groups only where there is an accelerator. These tests have torch's Python code believe
in one; the tensors stay in host memory."""

import threading
import unittest
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import group_ranks
from support import BoxTestCase

STEPS = 20
ACCELERATOR = {"is_available": lambda: True, "current_accelerator": lambda: torch.device("cuda")}


def _bind():
    dist.group.WORLD.bound_device_id = torch.device("cuda", 0)


def _sums(groups):
    """Uses each group from a thread of its own, at the same time. Returns the sums by group."""
    sums = {name: [] for name in groups}

    def use(name):
        for step in range(STEPS):
            tensor = torch.full((1000,), float(10 ** dist.get_rank() + step))
            dist.all_reduce(tensor, group=groups[name])
            sums[name].append(tensor[999].item())

    threads = [threading.Thread(target=use, args=(name,)) for name in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sums


def split(options, store):
    """Splits the default group twice, and one of the new groups again."""
    group_ranks.start(options, store)
    rank = dist.get_rank()
    try:
        dist.split_group(split_ranks=[[0, 1], [2, 3]])
        refused = None
    except RuntimeError as error:
        refused = str(error)
    with mock.patch.multiple(torch.accelerator, **ACCELERATOR):
        _bind()
        groups = {"world": dist.group.WORLD,
                  "halves": dist.split_group(split_ranks=[[0, 1], [3, 2]]),
                  "again": dist.split_group(split_ranks=[[0, 1], [3, 2]]),
                  "some": dist.split_group(split_ranks=[[1, 2, 3]])}
        if rank > 0:
            groups["of some"] = dist.split_group(groups["some"], [[0, 2]])
    groups = {name: group for name, group in groups.items() if group is not None}
    members = {name: (dist.get_process_group_ranks(group), dist.get_rank(group))
               for name, group in groups.items()}
    sums = _sums(groups)
    for name in list(groups):
        if name != "world":
            dist.destroy_process_group(groups.pop(name))
    after = _sums(groups)
    dist.destroy_process_group()
    return refused, members, sums, after


def mesh(options, store):
    """Makes a mesh, whose groups torch then splits from the default group."""
    group_ranks.start(options, store)
    splits = []
    original = dist.ProcessGroup.split_group  # only the class of the backend has its own
    with mock.patch.multiple(torch.accelerator, **ACCELERATOR):
        _bind()
        own = type(dist.group.WORLD).split_group
        assert own is not original

        def counted(group, ranks, *arguments, **keywords):
            splits.append(list(ranks))
            return own(group, ranks, *arguments, **keywords)

        with mock.patch.object(type(dist.group.WORLD), "split_group", counted):
            grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
            groups = [grid.get_group(name) for name in ("rows", "columns")]
    sums = []
    for group in groups:
        tensor = torch.full((3,), 10.0 ** dist.get_rank())
        dist.all_reduce(tensor, group=group)
        sums.append(tensor[0].item())
    dist.destroy_process_group()
    return splits, sums


class SplitTest(BoxTestCase):
    def test_split_groups_have_their_ranks_and_work_from_several_threads(self):
        expected = [
            {"world": [0, 1, 2, 3], "halves": [0, 1], "again": [0, 1]},
            {"world": [0, 1, 2, 3], "halves": [0, 1], "again": [0, 1], "some": [1, 2, 3],
             "of some": [1, 3]},
            {"world": [0, 1, 2, 3], "halves": [2, 3], "again": [2, 3], "some": [1, 2, 3]},
            {"world": [0, 1, 2, 3], "halves": [2, 3], "again": [2, 3], "some": [1, 2, 3],
             "of some": [1, 3]}]
        for rank, (refused, members, sums, after) in enumerate(
                self.run_ranks(split, 4, self.temporary_path("store"))):
            self.assertIn("No device associated with the default pg", refused)
            self.assertEqual(members, {name: (ranks, ranks.index(rank))
                                       for name, ranks in expected[rank].items()})
            for name, ranks in expected[rank].items():
                self.assertEqual(sums[name], [sum(10 ** member + step for member in ranks)
                                              for step in range(STEPS)], name)
            self.assertEqual(after, {"world": sums["world"]})

    def test_a_mesh_is_made_by_splits(self):
        for rank, (splits, sums) in enumerate(
                self.run_ranks(mesh, 4, self.temporary_path("store"))):
            row, column = [rank % 2, rank % 2 + 2], [rank // 2 * 2, rank // 2 * 2 + 1]
            self.assertEqual(splits, [row, column])
            self.assertEqual(sums, [sum(10.0 ** member for member in members)
                                    for members in (row, column)])


if __name__ == "__main__":
    unittest.main()

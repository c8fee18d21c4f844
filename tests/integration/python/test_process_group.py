"""The torch.distributed backend "pbox": every verb against gloo or an oracle, DDP, and failures."""

import datetime
import os
import pathlib
import signal
import tempfile
import time
import unittest

import numpy
import torch
import torch.distributed as dist

import group_ranks
import pbox
from pbox.torch import process_group
from pbox.torch._channel import Channel
from support import BoxTestCase, start_torchrun, store_options, wait_for_file


def functional(options, store):
    """Starts functional collectives of some ranks, and waits for none before all have started."""
    from torch.distributed import _functional_collectives  # pylint: disable=import-outside-toplevel
    group_ranks.start(options, store)
    pair = dist.new_group()
    started = [_functional_collectives.all_reduce(torch.full((3,), float(step)), "sum", pair)
               for step in range(200)]
    started += _functional_collectives.all_reduce_coalesced(
        [torch.full((size,), float(size)) for size in (1, 2, 3)], "sum", pair)
    sums = [tensor.sum().item() for tensor in started]
    dist.destroy_process_group(pair)
    dist.destroy_process_group()
    return sums


def ends_before_it_has_left(options, store, ended):
    """Rank 0's process ends while its thread still leaves the job. Rank 1 returns the error of an
    operation that it starts afterwards."""
    group_ranks.start(options, store)
    dist.barrier()
    if options["rank"] == 0:
        leave = Channel.leave

        def leave_late(channel):
            time.sleep(0.5)
            leave(channel)

        Channel.leave = leave_late
        dist.destroy_process_group()
        return None
    wait_for_file(ended)
    try:
        dist.barrier()
    except RuntimeError as error:
        return str(error)
    return "no error"


class ProcessGroupTest(BoxTestCase):
    def store(self):
        return self.temporary_path("store")

    def test_every_reduction_of_every_dtype_and_size_is_exact(self):
        for world_size in (2, 3):
            for differences in self.run_ranks(group_ranks.reductions, world_size, self.store()):
                self.assertEqual(differences, [])

    def test_every_verb_that_moves_elements_equals_gloo(self):
        for world_size in (2, 3):
            for differences in self.run_ranks(group_ranks.moves, world_size, self.store()):
                self.assertEqual(differences, [])

    def test_ddp_has_gloos_gradients_with_hooks_and_sparse_ones_too(self):
        for collected in self.run_ranks(group_ranks.trained, 2, self.store()):
            for name in ("plain", "fp16", "power"):
                for ours, gloos in zip(*collected[name]):
                    for mine, other in zip(ours, gloos):
                        numpy.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-5,
                                                      err_msg=name)
            for mine, other in zip(*collected["sparse"]):
                numpy.testing.assert_allclose(mine, other, rtol=1e-6)

    def test_works_have_futures_and_point_to_point_goes_through_gloo(self):
        first, second = self.run_ranks(group_ranks.works_and_futures, 2, self.store())
        self.assertEqual(first[:4], ([3, 3, 3], 6, 60, True))
        self.assertEqual(second[:4], first[:4])
        self.assertEqual((first[4], second[4]), ([0, 0], [1, 1]))

    def test_continuations_of_futures_that_have_ended_keep_the_order_of_the_other_ranks(self):
        # The sum over both ranks is 2. Then each value is multiplied by 10 and summed, twice.
        for sums in self.run_ranks(group_ranks.late_continuations, 2, self.store()):
            self.assertEqual(sums, [800.0] * 5)

    def test_ranks_connect_to_the_box_and_to_no_other_rank(self):
        for ours, with_gloo in self.run_ranks(group_ranks.connections, 3, self.store()):
            self.assertEqual(ours, 0)
            self.assertEqual(with_gloo, 2)

    def test_sixteen_ranks_start_without_a_mesh_of_connections(self):
        results = self.run_ranks(group_ranks.many, 16, self.store())
        self.assertEqual(results, [(16 * 17 / 2, 0)] * 16)

    def test_several_groups_work_at_the_same_time(self):
        pairs = ((0, 1), (1, 2), (0, 2))
        for rank, sums in enumerate(self.run_ranks(group_ranks.several_groups, 3, self.store())):
            self.assertEqual(sums, {
                index: [sum(10 ** member + step for member in pair) for step in range(20)]
                for index, pair in enumerate(pairs) if rank in pair})

    @unittest.skipIf(torch.__version__ < "2", "torch 1.13 has no functional collectives")
    def test_many_functional_collectives_are_waited_for_after_all_have_started(self):
        for sums in self.run_ranks(functional, 2, self.store()):
            self.assertEqual(sums, [6 * step for step in range(200)] + [2, 8, 18])


class FailureTest(BoxTestCase):
    def store(self):
        return self.temporary_path("store")

    def test_different_operations_name_both_ranks_and_a_new_group_works(self):
        for first, second, tensor in self.run_ranks(group_ranks.different_operations, 2,
                                                    self.store()):
            self.assertEqual(first[0], "Mismatch")
            for part in ("rank 0", "rank 1", "7", "8", "make a new one on all ranks"):
                self.assertIn(part, first[1])
            self.assertEqual(second, first)
            self.assertEqual(tensor, [2] * 5)

    def test_process_that_ends_leaves_its_job_first(self):
        ended = self.temporary_path("ended")
        ranks = self.start_ranks(ends_before_it_has_left, 2, self.store(), ended)
        ranks.result(0)
        ranks.processes[0].join()
        pathlib.Path(ended).touch()
        self.assertIn("rank 0 left the job", ranks.result(1))

    def test_skipped_operation_names_the_late_rank_at_the_deadline(self):
        (early, first, future), second = self.run_ranks(
            group_ranks.skipped_operation, 2, self.store(), self.temporary_path("seen"))
        self.assertEqual(early[0], "Timeout")
        self.assertRegex(early[1], r"after 200 ms.*rank\D*1")
        self.assertEqual(first[0], "Timeout")
        self.assertRegex(first[1], r"after 5000 ms.*rank\D*1")
        self.assertIn(first[1], future[1])
        self.assertEqual(second[0], "WorkerLost")
        self.assertIn("rank 0", second[1])

    def test_dead_rank_is_named_and_the_others_live(self):
        ready = self.temporary_path("ready")
        ranks = self.start_ranks(group_ranks.until_a_rank_dies, 3, self.store(), ready)
        for rank in range(3):
            wait_for_file(f"{ready}.{rank}")
        os.kill(ranks.processes[1].pid, signal.SIGKILL)
        for rank in (0, 2):
            first, second = ranks.result(rank)
            self.assertEqual(first[0], "WorkerLost")
            self.assertIn("rank 1", first[1])
            self.assertEqual(second, first)

    def test_abort_ends_operations_in_flight(self):
        (waited, later, errored), other = self.run_ranks(
            group_ranks.aborted, 2, self.store(), self.temporary_path("done"))
        for kind, text in (waited, later):
            self.assertEqual(kind, "PboxError")
            self.assertIn("aborted", text)
        self.assertIn("aborted", errored)
        self.assertEqual(other[0], "WorkerLost")

    def test_refused_calls_say_why_and_leave_the_group_usable(self):
        for errors, tensor in self.run_ranks(group_ranks.refused, 2, self.store()):
            for error, part in zip(errors, ("float32 by BAND", "outputs of [2] elements",
                                            "5 rows of the output", "5 rows of the input",
                                            "there are 3 inputs for 2 ranks",
                                            "does not know the reduction")):
                self.assertEqual(error[0], "InvalidArgument")
                self.assertIn(part, error[1])
            self.assertEqual(tensor, [2, 2])

    def test_group_without_rank_0_says_so(self):
        _, (kind, text) = self.run_ranks(group_ranks.without_a_first_rank, 2, self.store())
        self.assertEqual(kind, "Timeout")
        self.assertRegex(text, "rank 0 has not published the name of the group's job")

    def test_each_start_is_a_new_job_though_the_store_is_the_same(self):
        first, second = self.run_ranks(group_ranks.jobs_of_two_starts, 2, self.store())
        self.assertEqual(first, second)
        self.assertNotEqual(first[0], first[1])
        for name in first:
            self.assertRegex(name, "^test_each_start.*-[0-9a-f]{16}$")


class AgreementTest(unittest.TestCase):
    """How ranks find the job of their group through its store. Each call is a process's first."""

    def connects(self):
        """Yields a function for each kind of store, which connects a process to it."""
        with tempfile.TemporaryDirectory(prefix="pbox-test-") as folder:
            shared = dist.FileStore(f"{folder}/store", 3)
            yield lambda: shared
        server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False,
                               **store_options())
        yield lambda: dist.TCPStore("127.0.0.1", server.port, None, False, wait_for_workers=False,
                                    **store_options())

    def agreed(self, connect, rank, timeout_s=60):
        return process_group._agree_on_job(connect(), rank, datetime.timedelta(seconds=timeout_s))

    def check_that_they_meet(self, connect):
        names = [self.agreed(connect, rank) for rank in range(3)]
        self.assertEqual(names, names[:1] * 3)
        return names[0]

    def test_ranks_meet_again_with_the_same_store(self):
        for connect in self.connects():
            self.assertEqual(len({self.check_that_they_meet(connect) for _ in range(3)}), 3)

    def test_ranks_meet_although_one_has_waited_for_rank_0_in_vain(self):
        for connect in self.connects():
            for _ in range(2):
                with self.assertRaisesRegex(pbox.Timeout, "key pbox/job/1 .* restart all"):
                    self.agreed(connect, 1, timeout_s=0.1)
            self.check_that_they_meet(connect)
            with self.assertRaisesRegex(pbox.Timeout, "key pbox/job/2 "):
                self.agreed(connect, 2, timeout_s=0.1)
            self.check_that_they_meet(connect)

    def test_ranks_meet_although_rank_0_has_started_more_often(self):
        for connect in self.connects():
            for _ in range(3):
                self.agreed(connect, 0)
            self.agreed(connect, 1)
            self.check_that_they_meet(connect)
            self.check_that_they_meet(connect)


RESTARTED = """
import os, pathlib, sys
import torch
import torch.distributed as dist
import pbox.torch
dist.init_process_group("pbox")
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for step in range(5):
    if attempt < 3 and rank == attempt % 2 and step == 2:
        if attempt == 1:
            os.kill(os.getpid(), 9)
        raise SystemExit("this attempt fails")
    tensor = torch.full((100,), float(step))
    dist.all_reduce(tensor)
    assert tensor[0] == 2 * step
pathlib.Path(sys.argv[1] + str(rank)).write_text(str(attempt))
dist.destroy_process_group()
"""


class RestartTest(BoxTestCase):
    def test_torchrun_restarts_the_ranks_after_an_error_and_a_kill(self):
        script = pathlib.Path(self.temporary_path("script.py"))
        script.write_text(RESTARTED)
        done = self.temporary_path("done")
        agent = start_torchrun(
            script.parent, 0, "--nproc_per_node=2", f"--log_dir={self.temporary_path('logs')}",
            str(script), done, PBOX_BOX=self.box.control, PBOX_JOB="restarted")
        self.addCleanup(agent.kill)
        said, _ = agent.communicate(timeout=300)
        self.assertEqual(agent.returncode, 0, said)
        self.assertEqual([pathlib.Path(done + str(rank)).read_text() for rank in range(2)],
                         ["3", "3"])


if __name__ == "__main__":
    unittest.main()

"""Tensors on a device, with a fake libcudart: the process group, the hook and the optimizer give
the results that they give for tensors in host memory, wait where the device would, and name errors.
"""

import datetime
import os
import subprocess
import sys
import time
import unittest

import numpy
import torch
import torch.distributed as dist

import fake_device
import group_ranks
import pbox
import pbox.torch
import test_hook
import test_optimizer
from support import BoxTestCase, wait_for_file, weights_of

MANY_SLICES = 3 * 2 ** 20 + 1  # float32, at 4 MiB for each slice


def on_device(options, function, *arguments):
    """Returns what `function` returns with tensors of the fake device, how many events the device
    recorded, and the forbidden call, if any."""
    fake_device.install()
    returned = function(options, *arguments)
    return returned, fake_device.FakeDevice.events, fake_device.violation()


def without_waits(options, store, called):
    """Calls a device's operation that rank 1 joins only later. Returns what rank 0 saw."""
    fake_device.install()
    fake_device.FakeDevice.waits = False
    group_ranks.start(options, store)
    tensor = torch.full((MANY_SLICES,), 1.0 + options["rank"])
    if options["rank"] == 1:
        wait_for_file(called)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    future = work.get_future()
    seen = work.is_completed(), future.done()
    kept = tensor.data_ptr() in fake_device.FakeDevice.kept
    with open(f"{called}{'' if options['rank'] == 0 else '.1'}", "wb"):
        pass
    future.wait()  # returns once the results are in host memory
    work.wait(datetime.timedelta(seconds=30))
    while not work.is_completed():
        time.sleep(0.01)
    values = tensor[0].item(), tensor[-1].item()
    dist.destroy_process_group()
    return seen, kept, values, fake_device.violation()


def lost_rank(options, store):
    """Rank 1 aborts its group, and rank 0 begins an operation. Returns the errors of rank 0's later
    calls, the error of its group, whether the result is NaN, and the forbidden call, if any."""
    fake_device.install()
    group_ranks.start(options, store)
    dist.barrier()
    if options["rank"] == 1:
        dist.group.WORLD.abort()
        return None
    tensor = torch.ones(1001)
    work = dist.all_reduce(tensor, async_op=True)
    group_ranks._fails(work.wait)  # returns once the device's stream has passed it
    errored = str(dist.group.WORLD.errored())
    errors = [group_ranks._fails(call) for call in (
        work.get_future().wait, lambda: dist.all_reduce(torch.ones(3)), dist.barrier)]
    dist.destroy_process_group()
    return errors, errored, torch.isnan(tensor).all().item(), fake_device.violation()


def late_gradient(options, store):
    """Holds back rank 0's copy of a gradient to host memory. Returns the ranks' errors."""
    library = fake_device.install()
    group_ranks.start(options, store, timeout_s=3)
    dist.barrier()
    if options["rank"] == 1:
        return group_ranks._fails(lambda: [dist.all_reduce(torch.ones(7)), dist.barrier()])
    library.fake_cuda_hold_after(0)
    tensor = torch.ones(7)
    work = dist.all_reduce(tensor, async_op=True)
    ended = group_ranks._fails(lambda: work.get_future().wait())
    library.fake_cuda_release()
    dist.destroy_process_group()
    return ended


def fault(options, store, function, error):
    """A CUDA function fails on rank 0."""
    library = fake_device.install()
    group_ranks.start(options, store)
    dist.barrier()
    if options["rank"] == 0:
        library.fake_cuda_fail(function.encode(), 1, error, 1)
    errors = [group_ranks._fails(lambda: dist.all_reduce(torch.ones(MANY_SLICES)))]
    errors.append(group_ranks._fails(lambda: [dist.barrier(), dist.barrier()]))
    dist.destroy_process_group()
    return errors, fake_device.violation()


def weights_stay_after_a_loss(options):
    """Rank 1 leaves after two steps. Returns rank 0's weights before and after its third step."""
    fake_device.install()
    model = torch.nn.Linear(3, 2)
    local = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer = pbox.torch.DistributedOptimizer(local, model, on_worker_lost="abort", **options)

    def step():
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        optimizer.synchronize()

    step()
    step()
    before = weights_of(model)
    text = ""
    if options["rank"] == 0:
        try:
            step()
        except pbox.WorkerLost as error:
            text = str(error)
    optimizer.client.close()
    return before, weights_of(model), text, fake_device.violation()


class CudaTest(BoxTestCase):
    def on_device(self, function, world_size, *arguments, **options):
        """Returns what `function` returns on each rank."""
        returned = []
        for result, events, violation in self.run_ranks(on_device, world_size, function,
                                                        *arguments, **options):
            self.assertIsNone(violation)
            self.assertGreater(events, 0)
            returned.append(result)
        return returned

    def store(self):
        return self.temporary_path("store")

    def test_every_reduction_and_verb_of_the_process_group(self):
        for function in (group_ranks.reductions, group_ranks.moves):
            for differences in self.on_device(function, 2, self.store()):
                self.assertEqual(differences, [])

    def test_ddp_over_the_process_group_has_gloos_gradients_with_hooks_too(self):
        for collected in self.on_device(group_ranks.trained, 2, self.store()):
            for name in ("plain", "fp16", "power", "sparse"):
                ours, gloos = collected[name]
                for mine, other in zip(ours, gloos):
                    for one, two in zip(mine, other):
                        numpy.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-5, err_msg=name)

    def test_futures_and_their_continuations(self):
        first, second = self.on_device(group_ranks.works_and_futures, 2, self.store())
        self.assertEqual(first[:4], ([3, 3, 3], 6, 60, True))
        self.assertEqual(second[:4], first[:4])

    def test_continuations_keep_the_order_of_the_other_ranks(self):
        for sums in self.on_device(group_ranks.late_continuations, 2, self.store()):
            self.assertEqual(sums, [800.0] * 5)

    def test_several_groups_at_the_same_time(self):
        pairs = ((0, 1), (1, 2), (0, 2))
        for rank, sums in enumerate(self.on_device(group_ranks.several_groups, 3, self.store())):
            self.assertEqual(sums, {
                index: [sum(10 ** member + step for member in pair) for step in range(20)]
                for index, pair in enumerate(pairs) if rank in pair})

    def test_hook_has_gloos_gradients(self):
        for collected in self.on_device(test_hook.gradients_with_and_without_the_box, 2,
                                        self.store(), 0.001):
            for plain, boxed in collected:
                for one, other in zip(plain, boxed):
                    numpy.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)

    def test_optimizer_has_the_weights_of_tensors_in_host_memory(self):
        for function, arguments in ((test_optimizer.train, ("adam",)),
                                    (test_optimizer.train_channels_last, ()),
                                    (test_optimizer.train_with_schedule_and_groups, ())):
            expected = self.run_ranks(function, 2, *arguments, job=f"host-{function.__name__}")
            collected = self.on_device(function, 2, *arguments,
                                       job=f"device-{function.__name__}")
            for ours, theirs in zip(collected, expected):
                self.assertGreater(len(ours), 0)
                for one, other in zip(ours, theirs):
                    numpy.testing.assert_array_equal(one, other)


class WaitTest(BoxTestCase):
    def store(self):
        return self.temporary_path("store")

    def test_wait_makes_the_stream_wait_and_not_the_thread(self):
        (seen, *first), (_, *second) = self.run_ranks(
            without_waits, 2, self.store(), self.temporary_path("called"))
        self.assertEqual(seen, (False, False))
        self.assertEqual(first, [True, (3, 3), None])
        self.assertEqual(second, first)

    def test_later_operations_raise_the_loss_of_a_rank_and_results_are_nan(self):
        (errors, errored, is_nan, violation), _ = self.run_ranks(lost_rank, 2, self.store())
        self.assertIn("rank 1", errored)
        for kind, text in errors:
            self.assertIn("WorkerLost", kind + text)
            self.assertIn("rank 1", text)
        self.assertTrue(is_nan)
        self.assertIsNone(violation)

    def test_gradient_that_is_not_computed_at_the_deadline_is_said_to_be_late(self):
        (kind, text), _ = self.run_ranks(late_gradient, 2, self.store())
        self.assertIn("Timeout", kind + text)
        self.assertIn("input that the device has not copied to host memory yet", text)

    def test_errors_of_cuda_are_named_and_end_the_group_on_all_ranks(self):
        for function in ("cudaMemcpyAsync", "cudaLaunchHostFunc", "cudaEventRecord"):
            (first, violation), (other, _) = self.run_ranks(
                fault, 2, self.store(), function, 700, job=f"fault-{function}")
            self.assertIsNone(violation)
            for kind, text in first:
                self.assertEqual(kind, "SystemFailure")
                self.assertIn("an illegal memory access was encountered (700)", text)
                self.assertIn("make a new one on all ranks", text)
            self.assertEqual(other[1][0], "WorkerLost")

    def test_weights_stay_the_last_ones_when_a_rank_is_lost(self):
        (before, after, text, violation), _ = self.run_ranks(weights_stay_after_a_loss, 2)
        for one, other in zip(before, after):
            numpy.testing.assert_array_equal(one, other)
        self.assertIn("rank 1", text)
        self.assertIsNone(violation)


WITHOUT_CUDA = """
import pbox
with pbox.Client(mode="collective", rank=0, world_size=1) as client:
    client.join()
    try:
        client.attach_cuda(0, 1, 2)
    except pbox.NotFound as error:
        print(error)
"""


# Python 3.12 and later starts no thread while it exits.
EXIT_WITHOUT_THREADS = """
import atexit, os, sys, threading, torch
import torch.distributed as dist
import fake_device, pbox.torch
fake_device.install()
dist.init_process_group("pbox", init_method="file://" + sys.argv[1], rank=0, world_size=1)
tensor = torch.ones(7)
dist.all_reduce(tensor)
def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")
atexit.register(lambda: setattr(threading.Thread, "start", refuse))
print(tensor.sum().item())
"""


class ExitTest(BoxTestCase):
    def test_process_exits_without_closing_though_python_starts_no_thread(self):
        ended = subprocess.run(
            [sys.executable, "-B", "-c", EXIT_WITHOUT_THREADS, self.temporary_path("store")],
            capture_output=True, text=True, timeout=60, check=False, cwd=os.path.dirname(__file__),
            env={**os.environ, "PBOX_BOX": self.box.control, "PBOX_JOB": "exit"})
        self.assertEqual((ended.returncode, ended.stdout), (0, "7.0\n"), ended.stderr)
        self.assertNotIn("Traceback", ended.stderr)


class RefusalTest(BoxTestCase):
    def test_process_without_libcudart_says_what_to_do(self):
        ended = subprocess.run(
            [sys.executable, "-B", "-c", WITHOUT_CUDA], capture_output=True, text=True, timeout=60,
            check=True, env={**os.environ, "PBOX_BOX": self.box.control, "PBOX_JOB": self.id()})
        self.assertIn("has loaded no libcudart.so", ended.stdout)
        self.assertIn("use a torch build for CUDA", ended.stdout)

    def test_tensors_of_several_or_other_devices_are_refused(self):
        tensors = [torch.ones(2), torch.ones(2, device="meta")]
        with self.assertRaisesRegex(pbox.InvalidArgument, "are on cpu, meta: they must be on one"):
            pbox.torch._device.common_device(tensors)
        with self.assertRaisesRegex(pbox.InvalidArgument, r"is on meta: .* pass tensor.cpu\(\)"):
            pbox.torch._device.common_device(tensors[1:])


if __name__ == "__main__":
    unittest.main()

"""Two ranks on one CUDA device, over a box. tests/integration/cuda/run runs it."""

import unittest

import numpy

import gpu_ranks
from support import BoxTestCase


class GpuTest(BoxTestCase):
    def on_gpu(self, function, *arguments, **options):
        return self.run_ranks(gpu_ranks.set_device, 2, function, *arguments, **options)

    def store(self):
        return self.temporary_path("store")

    def compare(self, ours, theirs):
        for mine, other in zip(ours, theirs, strict=True):
            self.assertEqual(mine.keys(), other.keys())
            for name, arrays in mine.items():
                self.assertGreater(len(arrays), 0)
                for one, two in zip(arrays, other[name], strict=True):
                    numpy.testing.assert_array_equal(one, two, err_msg=name)

    def test_every_verb_equals_its_oracle(self):
        for differences in self.on_gpu(gpu_ranks.verbs, self.store()):
            self.assertEqual(differences, [])

    def test_ddp_and_fsdp2_have_the_weights_of_cpus_over_gloo(self):
        ours = self.on_gpu(gpu_ranks.trained, self.store(), "cuda")
        self.compare(ours, self.run_ranks(gpu_ranks.trained, 2, self.store(), "cpu"))

    def test_hook_and_optimizer_have_the_weights_of_cpus(self):
        ours = self.on_gpu(gpu_ranks.hook_and_optimizer, self.store(), "cuda", job="gpu")
        self.compare(ours, self.run_ranks(gpu_ranks.hook_and_optimizer, 2, self.store(), "cpu",
                                          job="cpu"))

    def test_memory_is_kept_until_its_copies_are_done(self):
        self.assertEqual(self.on_gpu(gpu_ranks.memory_is_not_used_early, self.store()),
                         [True, True])

    def test_wait_makes_the_stream_wait_and_not_the_thread(self):
        (completed, *values), (_, *others) = self.on_gpu(
            gpu_ranks.waits, self.store(), self.temporary_path("called"))
        self.assertFalse(completed)
        self.assertEqual((values, others), ([(3, 3)], [(3, 3)]))

    def test_results_are_nan_and_later_operations_fail_after_the_loss_of_a_rank(self):
        (is_nan, text), _ = self.on_gpu(gpu_ranks.lost_rank, self.store())
        self.assertTrue(is_nan)
        self.assertIn("rank 1", text)

    def test_traces_show_copies_that_overlap_with_each_other_and_with_kernels(self):
        for results in self.on_gpu(gpu_ranks.traced, self.store(), self.temporary_path("trace")):
            for name, seen in results.items():
                print(f"{name}: {seen}")
                self.assertGreater(min(seen["out_us"], seen["back_us"]), 0)
                self.assertGreater(seen["pipelined_us"], 0, name)
                self.assertGreater(seen["copies_during_kernels_us"], 0, name)
                # Kinds are names like "Memcpy DtoH (Device -> Pinned)".
                self.assertFalse([kind for kind in seen["kinds"] if "Pageable" in kind])
                self.assertEqual(seen["device_synchronizations"], 0)

    def test_prints_the_cost_of_staging(self):
        for rank, seconds in enumerate(self.on_gpu(gpu_ranks.timed, self.store())):
            ratio = seconds["cuda"] / seconds["cpu"]
            print(f"rank {rank}: all_reduce of 64 MiB, median of 10: {seconds['cuda']:.4f} s on "
                  f"the device, {seconds['cpu']:.4f} s in host memory, ratio {ratio:.2f}")
            self.assertGreater(ratio, 0)


if __name__ == "__main__":
    unittest.main()

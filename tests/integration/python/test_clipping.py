"""Gradient clipping, skipped steps and loss scaling on the box, against torch's on one process."""

import threading
import unittest

import numpy
import torch

import pbox
import pbox.torch
from support import (BoxTestCase, Ranks, make_model, shard_loss, train_with_a_late_rank,
                     wait_for_file, weights_of)

STEPS = 10
WORLD_SIZE = 2
NORM = 0.5
SPOILED = 4  # the step in which one rank's gradient is not finite
LONG = 400
SPOILED_STEPS = range(7, LONG, 10)
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.5}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
}


def make_optimizer(name, parameters):
    kind, values = OPTIMIZERS[name]
    return kind(parameters, **values)


def train_locally(name, norm=None, skipped=(), steps=STEPS, ranks=lambda step: range(WORLD_SIZE)):
    """The oracle. Returns the weights, and the norm of each step that was not skipped."""
    model = make_model()
    optimizer = make_optimizer(name, model.parameters())
    norms = []
    for step in range(steps):
        if step in skipped:
            continue
        optimizer.zero_grad()
        present = ranks(step)
        for rank in present:
            (shard_loss(model, step, rank) / len(present)).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(
            model.parameters(), norm or float("inf")).item())
        optimizer.step()
    return weights_of(model), norms


def train_clipped(options, name):
    model = make_model()
    norms = []
    with pbox.torch.DistributedOptimizer(make_optimizer(name, model.parameters()), model,
                                         max_grad_norm=NORM, **options) as optimizer:
        assert optimizer.grad_norm is None and not optimizer.step_skipped
        for step in range(STEPS):
            optimizer.zero_grad()
            shard_loss(model, step, options["rank"]).backward()
            optimizer.step()
            norms.append(optimizer.grad_norm)
        optimizer.synchronize()
        return weights_of(model), norms


def large_gradient(parameter, rank, step):
    """Returns the gradient of a parameter that is many windows large. In each step, the ranks'
    values differ."""
    return torch.full_like(parameter, 0.001 * (1 + rank) * (1 + step))


def train_large(options):
    """12 MB on one pipeline, whose window is 1 MiB at most."""
    parameter = torch.nn.Parameter(torch.ones(3_000_000))
    norms = []
    with pbox.torch.DistributedOptimizer(
            torch.optim.SGD([parameter], lr=1.0), max_grad_norm=NORM,
            named_parameters=[("large", parameter)], **options) as optimizer:
        for step in range(3):
            parameter.grad = large_gradient(parameter, options["rank"], step)
            optimizer.step()
            norms.append(optimizer.grad_norm)
        optimizer.synchronize()
        return parameter.detach().numpy().copy(), norms


def train_accumulating(options):
    """Runs two micro-batches per step. The optimizer is not given the model, so step() waits for
    the weights."""
    model = make_model()
    with pbox.torch.DistributedOptimizer(
            make_optimizer("momentum", model.parameters()), max_grad_norm=NORM,
            named_parameters=model.named_parameters(), **options) as optimizer:
        for step in range(0, STEPS, 2):
            optimizer.zero_grad()
            with optimizer.no_sync():
                shard_loss(model, step, options["rank"]).backward()
            shard_loss(model, step + 1, options["rank"]).backward()
            optimizer.step()
        return weights_of(model)


def clip_with_a_late_rank(options):
    model = make_model()
    timeouts, collected = train_with_a_late_rank(
        options, model, make_optimizer("sgd", model.parameters()), max_grad_norm=NORM)
    return timeouts, collected[-1]


def train_and_skip(options, skip_nonfinite=True):
    """Rank 1's loss is infinite in one step."""
    model = make_model()
    skipped, kept = [], []
    with pbox.torch.DistributedOptimizer(make_optimizer("adam", model.parameters()), model,
                                         max_grad_norm=NORM, skip_nonfinite=skip_nonfinite,
                                         **options) as optimizer:
        for step in range(STEPS):
            optimizer.synchronize()
            before = weights_of(model)
            optimizer.zero_grad()
            loss = shard_loss(model, step, options["rank"])
            (loss * float("inf") if step == SPOILED and options["rank"] == 1 else loss).backward()
            optimizer.step()
            skipped.append(optimizer.step_skipped)
            optimizer.synchronize()
            kept.append(all((old == new).all() for old, new in zip(before, weights_of(model))))
        return weights_of(model), skipped, kept


def train_scaled(options):
    """Rank 0's gradient overflows in one step."""
    model = make_model()
    scales = []
    with pbox.torch.DistributedOptimizer(make_optimizer("adam", model.parameters()), model,
                                         max_grad_norm=NORM, skip_nonfinite=True,
                                         **options) as optimizer:
        scaler = pbox.torch.GradScaler(optimizer, growth_interval=3)
        norms = []
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = shard_loss(model, step, options["rank"])
            if step == SPOILED and options["rank"] == 0:
                loss = loss * 1e38
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            if step != SPOILED:
                norms.append(optimizer.grad_norm)
        optimizer.synchronize()
        return weights_of(model), scales, norms, scaler.state_dict()


def train_and_lose_rank_1(options, report):
    """Rank 1 is killed when it has finished step 2. Returns the weights after each step."""
    model = make_model()
    collected = []
    with pbox.torch.DistributedOptimizer(make_optimizer("sgd", model.parameters()), model,
                                         max_grad_norm=NORM, **options) as optimizer:
        for step in range(6):
            optimizer.zero_grad()
            shard_loss(model, step, options["rank"]).backward()
            optimizer.step()
            optimizer.synchronize()
            collected.append(weights_of(model))
            if step == 2 and options["rank"] == 1:
                optimizer.client.barrier()
                open(report, "x").close()
                threading.Event().wait()
            if step == 2:
                optimizer.client.barrier()
    return collected


def scaled_until(options, report):
    """Rank 1 is killed after step 3, and a new process takes its place."""
    rejoins = options.get("rejoin", 0)
    model = make_model()
    with pbox.torch.DistributedOptimizer(make_optimizer("sgd", model.parameters()), model,
                                         skip_nonfinite=True, **options) as optimizer:
        scaler = pbox.torch.GradScaler(optimizer, init_scale=8.0, growth_interval=2)
        first = optimizer.client.tensor_round(optimizer._slots[0].tensor) - 1
        for step in range(first, 8):
            optimizer.zero_grad()
            scaler.scale(shard_loss(model, step, options["rank"])).backward()
            scaler.step(optimizer)
            scaler.update()
            if step == 3 and options["rank"] == 1 and not rejoins:
                optimizer.synchronize()
                open(report, "x").close()
                threading.Event().wait()
        optimizer.synchronize()
        return weights_of(model), scaler.state_dict()


def rejoin_as_rank_1(options, report):
    return scaled_until({**options, "rank": 1, "rejoin": 1}, report)


def train_through_a_loss(options, report):
    """Says in a file that step 5 is done, and goes on. Rank 1's loss is infinite now and then."""
    model = make_model()
    skipped = []
    with pbox.torch.DistributedOptimizer(make_optimizer("sgd", model.parameters()), model,
                                         max_grad_norm=NORM, skip_nonfinite=True,
                                         **options) as optimizer:
        for step in range(LONG):
            optimizer.zero_grad()
            loss = shard_loss(model, step, options["rank"])
            if options["rank"] == 1 and step in SPOILED_STEPS:
                loss = loss * float("inf")
            loss.backward()
            optimizer.step()
            skipped.append(optimizer.step_skipped)
            if step == 5 and options["rank"] == 0:
                open(report, "x").close()
        optimizer.synchronize()
        recoveries = optimizer.client.statistics()["recoveries"]
    return weights_of(model), skipped, recoveries


def scale_differently(options):
    model = make_model()
    try:
        with pbox.torch.DistributedOptimizer(make_optimizer("sgd", model.parameters()), model,
                                             skip_nonfinite=True, **options) as optimizer:
            scaler = pbox.torch.GradScaler(optimizer, init_scale=2.0 ** (8 + options["rank"]))
            scaler.scale(shard_loss(model, 0, options["rank"])).backward()
            scaler.step(optimizer)
            scaler.update()
    except pbox.PboxError as error:
        return type(error).__name__, str(error)
    return None


class ClippingTest(BoxTestCase):
    @classmethod
    def setUpClass(cls):
        cls.box = pbox.LocalBox("--pipeline.count=2")
        cls.addClassCleanup(cls.box.close)

    def check_weights(self, results, expected, rtol=1e-5, atol=1e-6):
        for rank, weights in enumerate(results):
            for mine, first, local in zip(weights, results[0], expected):
                numpy.testing.assert_array_equal(mine, first, f"rank {rank} differs from rank 0")
                numpy.testing.assert_allclose(mine, local, rtol=rtol, atol=atol)

    def optimizer(self, **options):
        model = make_model()
        optimizer = pbox.torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model, **self.options(1), rank=0,
            **options)
        self.addCleanup(optimizer.client.close)
        return model, optimizer

    def check_clipping(self, name, atol=1e-6):
        expected, norms = train_locally(name, NORM)
        self.assertTrue(any(norm > NORM for norm in norms))
        results = self.run_ranks(train_clipped, WORLD_SIZE, name)
        self.check_weights([weights for weights, _ in results], expected, atol=atol)
        for _, of_rank in results:
            self.assertEqual(of_rank, results[0][1])
            numpy.testing.assert_allclose(of_rank, norms, rtol=1e-4)

    def test_clipping_with_sgd_is_that_of_torch(self):
        self.check_clipping("sgd")

    def test_clipping_with_momentum_is_that_of_torch(self):
        self.check_clipping("momentum")

    def test_clipping_with_adam_is_that_of_torch(self):
        self.check_clipping("adam", atol=1e-5)

    def test_a_model_that_is_many_windows_large_is_clipped_too(self):
        parameter = torch.nn.Parameter(torch.ones(3_000_000))
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        norms = []
        for step in range(3):
            parameter.grad = sum(large_gradient(parameter, rank, step)
                                 for rank in range(WORLD_SIZE)) / WORLD_SIZE
            norms.append(numpy.linalg.norm(parameter.grad.numpy().astype(numpy.float64)))
            parameter.grad *= NORM / norms[-1]  # torch's own norm of so many values is inexact
            optimizer.step()
        results = self.run_ranks(train_large, WORLD_SIZE)
        for weights, of_rank in results:
            numpy.testing.assert_allclose(weights, parameter.detach().numpy(), rtol=1e-5)
            numpy.testing.assert_allclose(of_rank, norms, rtol=1e-3)

    def test_accumulated_gradients_are_clipped_as_one(self):
        model = make_model()
        optimizer = make_optimizer("momentum", model.parameters())
        for step in range(0, STEPS, 2):
            optimizer.zero_grad()
            for rank in range(WORLD_SIZE):
                for part in (step, step + 1):
                    (shard_loss(model, part, rank) / WORLD_SIZE).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), NORM)
            optimizer.step()
        self.check_weights(self.run_ranks(train_accumulating, WORLD_SIZE), weights_of(model))

    def test_step_continues_after_a_timeout(self):
        results = self.run_ranks(clip_with_a_late_rank, 2)
        self.assertGreater(results[0][0], 0)
        expected, _ = train_locally("sgd", NORM, steps=3)
        self.check_weights([weights for _, weights in results], expected)

    def test_clipping_goes_on_without_a_rank_that_is_lost(self):
        report = self.temporary_path("steps")
        ranks = self.start_ranks(train_and_lose_rank_1, 2, report, on_worker_lost="partial",
                                 lost_timeout_ms=1000)
        wait_for_file(report)
        ranks.kill(1)
        collected = ranks.result(0)
        for steps in (3, 6):
            expected, _ = train_locally("sgd", NORM, steps=steps,
                                        ranks=lambda step: range(2 if step <= 2 else 1))
            self.check_weights([collected[steps - 1]], expected)

    def test_numerics_ordered_clips_too(self):
        expected, _ = train_locally("sgd", NORM)
        results = self.run_ranks(train_clipped, WORLD_SIZE, "sgd", numerics="ordered")
        self.check_weights([weights for weights, _ in results], expected)

    def test_delivery_pull_clips_too(self):
        expected, _ = train_locally("sgd", NORM)
        results = self.run_ranks(train_clipped, WORLD_SIZE, "sgd", delivery="pull")
        self.check_weights([weights for weights, _ in results], expected)

    def test_a_step_that_is_not_finite_is_skipped_on_all_ranks(self):
        expected, _ = train_locally("adam", NORM, skipped=(SPOILED,))
        for results in (self.run_ranks(train_and_skip, WORLD_SIZE),
                        self.run_ranks(train_and_skip, WORLD_SIZE, False, guard="reject")):
            for _, skipped, kept in results:
                self.assertEqual(skipped, [step == SPOILED for step in range(STEPS)])
                self.assertEqual(kept, skipped)
            self.check_weights([weights for weights, _, _ in results], expected, atol=1e-5)

    def test_the_loss_scale_grows_and_backs_off_equally_on_all_ranks(self):
        expected, norms = train_locally("adam", NORM, skipped=(SPOILED,))
        results = self.run_ranks(train_scaled, WORLD_SIZE)
        scale, tracker, scales = 2.0 ** 16, 0, []
        for step in range(STEPS):
            tracker += 1
            if step == SPOILED:
                scale, tracker = scale / 2, 0
            elif tracker == 3:
                scale, tracker = scale * 2, 0
            scales.append(scale)
        for _, of_rank, of_rank_norms, state in results:
            self.assertEqual(of_rank, scales)
            self.assertEqual(state["_growth_tracker"], tracker)
            numpy.testing.assert_allclose(of_rank_norms, norms, rtol=1e-4)
        self.check_weights([result[0] for result in results], expected, atol=1e-5)

    def test_a_process_that_rejoins_takes_the_loss_scale_from_the_job(self):
        report = self.temporary_path("steps")
        ranks = self.start_ranks(scaled_until, 2, report, lost_timeout_ms=60000)
        wait_for_file(report)
        ranks.kill(1)
        again = Ranks(rejoin_as_rank_1, 1, self.options(2, lost_timeout_ms=60000), (report,))
        self.addCleanup(again.close)
        results = [ranks.result(0), again.result(0)]
        self.assertEqual(results[0][1], results[1][1])
        self.assertEqual(results[0][1]["scale"], 8.0 * 2 ** 4)
        expected, _ = train_locally("sgd", steps=8)
        self.check_weights([weights for weights, _ in results], expected)

    def test_ranks_with_different_loss_scales_are_told(self):
        for failure in self.run_ranks(scale_differently, 2):
            self.assertEqual(failure[0], "Mismatch")
            self.assertIn("loss scale", failure[1])

    def test_half_precision_is_clipped_and_skipped(self):
        weights = numpy.ones(1000, dtype=numpy.float16)
        client = self.client(mode="optimize")
        tensor = client.register("weights", weights)
        client.set_optimizer("sgd", 1.0, max_grad_norm=1.0, skip_nonfinite=True)
        client.join()
        client.init_weights(tensor, weights)
        client.wait(tensor)
        self.assertIsNone(client.last_step())
        gradient = numpy.full(1000, 3.0, dtype=numpy.float16)
        client.set_loss_scale(4.0)
        client.push_pull(tensor, gradient, weights)
        client.wait(tensor)
        step = client.last_step()
        self.assertAlmostEqual(step["norm"], 0.75 * 1000 ** 0.5, places=4)
        self.assertEqual((step["round"], step["skipped"], step["loss_scale"]), (1, False, 4.0))
        numpy.testing.assert_allclose(weights, 1 - 1 / 1000 ** 0.5, rtol=1e-3)
        before = weights.copy()
        gradient[17] = numpy.inf
        client.push_pull(tensor, gradient, weights)
        client.wait(tensor)
        self.assertTrue(client.last_step()["skipped"])
        numpy.testing.assert_array_equal(weights, before)

    def test_torchs_grad_scaler_is_refused_in_words(self):
        model, optimizer = self.optimizer(skip_nonfinite=True)
        shard_loss(model, 0, 0).backward()
        with self.assertRaisesRegex(pbox.InvalidArgument, r"pbox\.torch\.GradScaler"):
            optimizer.step(grad_scaler=object())
        with self.assertRaisesRegex(pbox.InvalidArgument, r"pbox\.torch\.GradScaler"):
            next(model.parameters()).grad.mul_(0.5)
        with self.assertRaisesRegex(pbox.InvalidArgument, "max_grad_norm"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.synchronize()

    @unittest.skipUnless(hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"),
                         "this torch has no GradScaler for the CPU")
    def test_torchs_grad_scaler_itself_is_refused_in_words(self):
        model, optimizer = self.optimizer(skip_nonfinite=True)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(shard_loss(model, 0, 0)).backward()
        with self.assertRaisesRegex(pbox.InvalidArgument, r"pbox\.torch\.GradScaler"):
            scaler.step(optimizer)

    def test_what_the_grad_scaler_cannot_do_is_refused_in_words(self):
        model, optimizer = self.optimizer(max_grad_norm=1.0)
        with self.assertRaisesRegex(pbox.InvalidArgument, "skip_nonfinite=True"):
            pbox.torch.GradScaler(optimizer)
        with self.assertRaisesRegex(pbox.InvalidArgument, "DistributedOptimizer"):
            pbox.torch.GradScaler(torch.optim.SGD(model.parameters(), lr=0.1))
        disabled = pbox.torch.GradScaler(optimizer, enabled=False)
        self.assertEqual(disabled.get_scale(), 1.0)
        with self.assertRaisesRegex(pbox.InvalidArgument, "unscale"):
            disabled.unscale_(optimizer)
        with self.assertRaisesRegex(pbox.InvalidArgument, "loss_scale"):
            optimizer.client.set_loss_scale(0.0)

    def test_options_that_the_box_cannot_combine_are_refused_in_words(self):
        model = make_model()
        for norm in (0.0, -1.0, float("nan"), float("inf")):
            with self.assertRaisesRegex(pbox.InvalidArgument, "max_grad_norm"):
                pbox.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model,
                                                max_grad_norm=norm, **self.options(1), rank=0)
        with self.assertRaisesRegex(pbox.InvalidArgument, "max_grad_norm 1 needs sync model bsp"):
            pbox.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model,
                                            max_grad_norm=1.0, sync="asp", recovery="none",
                                            **self.options(1), rank=0)
        plain = pbox.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model,
                                                **self.options(1), rank=0)
        self.addCleanup(plain.client.close)
        with self.assertRaisesRegex(pbox.InvalidArgument, "max_grad_norm"):
            plain.grad_norm

    def test_the_state_of_the_scaler_is_that_of_torch(self):
        _, optimizer = self.optimizer(skip_nonfinite=True)
        scaler = pbox.torch.GradScaler(optimizer)
        self.assertEqual(scaler.state_dict(), {
            "scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5,
            "growth_interval": 2000, "_growth_tracker": 0})
        scaler.load_state_dict({**scaler.state_dict(), "scale": 8.0, "_growth_tracker": 5})
        self.assertEqual(scaler.get_scale(), 8.0)
        self.assertEqual(float(scaler.scale(torch.ones(()))), 8.0)


class LostBoxTest(BoxTestCase):
    """Each test kills the box of its class."""

    @classmethod
    def setUpClass(cls):
        cls.box = pbox.LocalBox("--pipeline.count=2")
        cls.addClassCleanup(cls.box.close)

    def test_verdicts_and_weights_are_the_same_across_the_loss_of_the_box(self):
        report = self.temporary_path("steps")
        ranks = self.start_ranks(train_through_a_loss, 2, report)
        wait_for_file(report)
        self.box.process.kill()
        self.box.process.wait()
        port = self.box.control.rpartition(":")[2]
        again = pbox.LocalBox("--pipeline.count=2", f"--control.port={port}")
        self.addCleanup(again.close)
        results = [ranks.result(rank) for rank in range(2)]
        expected, _ = train_locally("sgd", NORM, skipped=SPOILED_STEPS, steps=LONG)
        for weights, skipped, recoveries in results:
            self.assertGreater(recoveries, 0)
            self.assertEqual(skipped, [step in SPOILED_STEPS for step in range(LONG)])
            for mine, first, local in zip(weights, results[0][0], expected):
                numpy.testing.assert_array_equal(mine, first)
                numpy.testing.assert_allclose(mine, local, rtol=1e-3, atol=1e-4)


if __name__ == "__main__":
    unittest.main()

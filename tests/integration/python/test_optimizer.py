"""pbox.torch.DistributedOptimizer: the box's optimizer steps against torch.optim's."""

import copy
import threading
import unittest
import warnings

import numpy
import torch
from torch.utils.data import DataLoader, TensorDataset

import pbox
import pbox.torch
from pbox.torch.optimizer import warn_of_statistics
from support import (BoxTestCase, Convolution, make_batch, make_model, shard_loss, train_locally,
                     train_with_a_late_rank, wait_for_file, weights_of)

STEPS = 12
WORLD_SIZE = 2
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd with decay": (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.01}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "nesterov": (torch.optim.SGD,
                 {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "betas": (0.8, 0.99), "weight_decay": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1, "weight_decay": 0.01}),
}


def make_optimizer(name, parameters):
    kind, values = OPTIMIZERS[name]
    return kind(parameters, **values)


def two_groups(model):
    """Biases learn at half the rate and do not decay."""
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    biases = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    return torch.optim.SGD([{"params": weights, "weight_decay": 0.01},
                            {"params": biases, "lr": 0.05}], lr=0.1, momentum=0.9)


def train(options, name):
    """Returns the weights after the steps. The ranks' initial weights differ; rank 0's count."""
    model = make_model(seed=options["rank"])
    local = make_optimizer(name, model.parameters())
    with pbox.torch.DistributedOptimizer(local, model, **options) as optimizer:
        for step in range(STEPS):
            optimizer.zero_grad()
            shard_loss(model, step, options["rank"]).backward()
            optimizer.step()
        optimizer.synchronize()
        return weights_of(model)


def train_with_schedule_and_groups(options):
    model = make_model()
    with pbox.torch.DistributedOptimizer(two_groups(model), model, **options) as optimizer:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
        for step in range(STEPS):
            optimizer.zero_grad()
            shard_loss(model, step, options["rank"]).backward()
            optimizer.step()
            scheduler.step()
        return [tensor.numpy().copy() for tensor in model.state_dict().values()]


def train_channels_last(options):
    model = Convolution()
    local = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    with pbox.torch.DistributedOptimizer(local, model, **options) as optimizer:
        for step in range(STEPS):
            optimizer.zero_grad()
            shard_loss(model, step, options["rank"]).backward()
            optimizer.step()
        optimizer.synchronize()
        assert model.images.weight.is_contiguous(memory_format=torch.channels_last)
        return weights_of(model)


def join_with_weights_in_another_order(options):
    model = Convolution()
    if options["rank"] == 1:
        model.images.to(memory_format=torch.contiguous_format)
    try:
        pbox.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model,
                                        **options)
    except pbox.PboxError as error:
        return type(error).__name__, str(error)
    return None


def optimize_with_a_late_rank(options):
    model = make_model()
    return train_with_a_late_rank(options, model, make_optimizer("momentum", model.parameters()))


def train_with_clipped_shards(options):
    """Clips each rank's own gradient, which is not on the box before step()."""
    model = make_model()
    with pbox.torch.DistributedOptimizer(
            make_optimizer("sgd", model.parameters()), model, **options) as optimizer:
        for step in range(STEPS):
            optimizer.zero_grad()
            with optimizer.no_sync():
                shard_loss(model, step, options["rank"]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        optimizer.synchronize()
        return weights_of(model)


def train_without_a_model(options):
    """Runs two micro-batches per step, with named parameters, so that step() waits."""
    model = make_model()
    local = make_optimizer("momentum", model.parameters())
    with pbox.torch.DistributedOptimizer(
            local, named_parameters=model.named_parameters(), **options) as optimizer:
        for step in range(0, STEPS, 2):
            optimizer.zero_grad()
            with optimizer.no_sync():
                shard_loss(model, step, options["rank"]).backward()
            shard_loss(model, step + 1, options["rank"]).backward()
            optimizer.step()
        return weights_of(model)


def train_one_layer_on_rank_0_only(options):
    """Trains a model whose second layer has a gradient on rank 0 only."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 4))
    with pbox.torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model, **options) as optimizer:
        for step in range(3):
            optimizer.zero_grad()
            inputs, targets = make_batch(step, options["rank"])
            outputs = model(inputs) if options["rank"] == 0 else model[0](inputs)
            torch.nn.functional.cross_entropy(outputs, targets).backward()
            optimizer.step()
        optimizer.synchronize()
        return weights_of(model)


def train_with_forked_data_loaders(options):
    model = make_model()
    with pbox.torch.DistributedOptimizer(
            make_optimizer("adam", model.parameters()), model, **options) as optimizer:
        data = DataLoader(TensorDataset(torch.ones(32, 8)), batch_size=8, num_workers=2)
        for (batch,) in data:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
        optimizer.synchronize()
        return weights_of(model)


def train_until_the_box_is_lost(options, report):
    model = make_model()
    optimizer = pbox.torch.DistributedOptimizer(
        make_optimizer("sgd", model.parameters()), model, **options)
    try:
        for step in range(1_000_000):
            optimizer.zero_grad()
            shard_loss(model, step, options["rank"]).backward()
            optimizer.step()
            if step == 20:
                open(f"{report}.{options['rank']}", "x").close()
    except pbox.BoxLost as error:
        return str(error)
    finally:
        optimizer.client.close()
    return None


def train_and_lose_rank_0(options, report):
    """Halves the learning rate after each step. Rank 0 is killed when it has finished step 2.
    Returns the weights after each step of rank 1."""
    model = make_model()
    collected = []
    with pbox.torch.DistributedOptimizer(
            make_optimizer("sgd", model.parameters()), model, **options) as optimizer:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for step in range(6):
            optimizer.zero_grad()
            shard_loss(model, step, options["rank"]).backward()
            optimizer.step()
            scheduler.step()
            optimizer.synchronize()
            collected.append(weights_of(model))
            if step == 2 and options["rank"] == 0:
                optimizer.client.barrier()
                open(report, "x").close()
                threading.Event().wait()
            if step == 2:
                optimizer.client.barrier()
    return collected


class OptimizerTest(BoxTestCase):
    def check_weights(self, results, expected, rtol=1e-5, atol=1e-6):
        for rank, weights in enumerate(results):
            for mine, first, local in zip(weights, results[0], expected):
                numpy.testing.assert_array_equal(mine, first, f"rank {rank} differs from rank 0")
                numpy.testing.assert_allclose(mine, local, rtol=rtol, atol=atol)

    def check_kind(self, name):
        model = make_model()
        before = weights_of(model)
        expected = train_locally(model, make_optimizer(name, model.parameters()), STEPS,
                                 WORLD_SIZE)
        self.assertGreater(max(abs(after - start).max()
                               for after, start in zip(expected, before)), 0.01)
        # Adam and Adagrad divide by a root that may be tiny, which amplifies rounding errors.
        atol = 1e-5 if name.startswith("ada") else 1e-6
        self.check_weights(self.run_ranks(train, WORLD_SIZE, name), expected, atol=atol)

    def test_sgd_is_that_of_torch(self):
        self.check_kind("sgd")

    def test_sgd_with_weight_decay_is_that_of_torch(self):
        self.check_kind("sgd with decay")

    def test_momentum_is_that_of_torch(self):
        self.check_kind("momentum")

    def test_nesterov_is_that_of_torch(self):
        self.check_kind("nesterov")

    def test_adam_is_that_of_torch(self):
        self.check_kind("adam")

    def test_adamw_is_that_of_torch(self):
        self.check_kind("adamw")

    def test_adagrad_is_that_of_torch(self):
        self.check_kind("adagrad")

    def test_nesterov_follows_the_formula_of_phub(self):
        """state = momentum * state + gradient; weight -= rate * (gradient + momentum * state)."""
        rate, momentum = 0.1, 0.9
        model = torch.nn.Linear(3, 2)
        weight = model.weight.detach().numpy().astype(numpy.float64)
        state = numpy.zeros_like(weight)
        local = torch.optim.SGD([model.weight], lr=rate, momentum=momentum, nesterov=True)
        with pbox.torch.DistributedOptimizer(local, model, **self.options(1), rank=0) as optimizer:
            for step in range(8):
                gradient = torch.sin(torch.arange(6.0).reshape(2, 3) + step)
                optimizer.zero_grad()
                (model.weight * gradient).sum().backward()
                optimizer.step()
                state = momentum * state + gradient.numpy()
                weight -= rate * (gradient.numpy() + momentum * state)
                optimizer.synchronize()
                numpy.testing.assert_allclose(model.weight.detach().numpy(), weight, rtol=1e-5,
                                              atol=1e-6)

    def test_scheduler_and_groups_are_followed(self):
        model = make_model()
        local = two_groups(model)
        scheduler = torch.optim.lr_scheduler.StepLR(local, 3, gamma=0.5)
        expected = train_locally(model, local, STEPS, WORLD_SIZE, scheduler.step)
        self.check_weights(self.run_ranks(train_with_schedule_and_groups, WORLD_SIZE), expected)

    def test_learning_rate_changes_although_rank_0_is_lost(self):
        model = make_model()
        local = make_optimizer("sgd", model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(local, 1, gamma=0.5)
        report = self.temporary_path("steps")
        ranks = self.start_ranks(train_and_lose_rank_0, 2, report, on_worker_lost="partial",
                                 lost_timeout_ms=1000)
        wait_for_file(report)
        ranks.kill(0)
        for step, weights in enumerate(ranks.result(1)):
            present = (0, 1) if step <= 2 else (1,)
            local.zero_grad()
            for rank in present:
                (shard_loss(model, step, rank) / len(present)).backward()
            local.step()
            scheduler.step()
            self.check_weights([weights], weights_of(model))

    def test_forward_of_a_layer_waits_for_that_layer_alone(self):
        model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 4))
        events = []
        with pbox.torch.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), model, rank=0,
                **self.options(1)) as optimizer:
            wait = optimizer.client.wait

            def noted_wait(tensor, timeout_ms=0):
                events.append(f"wait for {tensor.name}")
                wait(tensor, timeout_ms)

            optimizer.client.wait = noted_wait
            for name, layer in model.named_children():
                layer.register_forward_hook(lambda *_, name=name: events.append(f"forward {name}"))
            for _ in range(2):
                events.clear()
                model(torch.ones(2, 8)).sum().backward()
                optimizer.step()
        self.assertEqual(events[:7], [
            "wait for 0.weight", "wait for 0.bias", "forward 0", "forward 1",
            "wait for 2.weight", "wait for 2.bias", "forward 2"])

    def test_gradients_accumulate_under_no_sync(self):
        model = make_model()
        optimizer = make_optimizer("momentum", model.parameters())
        for step in range(0, STEPS, 2):
            optimizer.zero_grad()
            for micro_batch in (step, step + 1):
                for rank in range(WORLD_SIZE):
                    (shard_loss(model, micro_batch, rank) / WORLD_SIZE).backward()
            optimizer.step()
        self.check_weights(self.run_ranks(train_without_a_model, WORLD_SIZE), weights_of(model))

    def test_layer_without_a_gradient_on_one_rank_holds_nobody_up(self):
        results = self.run_ranks(train_one_layer_on_rank_0_only, WORLD_SIZE)
        self.check_weights(results, results[0])

    def test_forked_data_loaders_do_no_harm(self):
        results = self.run_ranks(train_with_forked_data_loaders, WORLD_SIZE)
        self.check_weights(results, results[0])

    def test_channels_last_weights_are_optimized_in_their_own_order(self):
        model = Convolution()
        local = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        expected = train_locally(model, local, STEPS, WORLD_SIZE)
        self.check_weights(self.run_ranks(train_channels_last, WORLD_SIZE), expected)

    def test_ranks_with_weights_in_different_orders_are_told(self):
        failures = [failure for failure in self.run_ranks(
            join_with_weights_in_another_order, WORLD_SIZE, join_timeout_ms=3000) if failure]
        self.assertTrue(any(kind == "Mismatch" and "images.weight in order 0,2,3,1" in text
                            for kind, text in failures), failures)

    def test_step_goes_on_when_it_is_called_again_after_a_timeout(self):
        model = make_model()
        local = make_optimizer("momentum", model.parameters())
        expected = []
        train_locally(model, local, 3, WORLD_SIZE, lambda: expected.append(weights_of(model)))
        (timeouts, first), (_, second) = self.run_ranks(optimize_with_a_late_rank, WORLD_SIZE)
        self.assertGreater(timeouts, 0)
        for mine, other, local in zip(first, second, expected):
            self.check_weights([mine, other], local)

    def test_each_ranks_own_gradient_can_be_clipped_before_step(self):
        model = make_model()
        optimizer = make_optimizer("sgd", model.parameters())
        for step in range(STEPS):
            sums = [torch.zeros_like(parameter) for parameter in model.parameters()]
            for rank in range(WORLD_SIZE):
                optimizer.zero_grad()
                shard_loss(model, step, rank).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                for total, parameter in zip(sums, model.parameters()):
                    total += parameter.grad / WORLD_SIZE
            for total, parameter in zip(sums, model.parameters()):
                parameter.grad = total
            optimizer.step()
        self.check_weights(self.run_ranks(train_with_clipped_shards, WORLD_SIZE),
                           weights_of(model))

    def test_killed_box_ends_training_on_every_rank(self):
        with pbox.LocalBox() as box:
            report = self.temporary_path("training")
            ranks = self.start_ranks(train_until_the_box_is_lost, WORLD_SIZE, report,
                                     box=box.control, recovery="none")
            for rank in range(WORLD_SIZE):
                wait_for_file(f"{report}.{rank}")
            box.process.kill()
            for rank in range(WORLD_SIZE):
                self.assertIn(box.control, ranks.result(rank))


class Linear(torch.nn.Module):
    """A model whose gradient does not depend on its weights. Its layers' forward() is called only
    if `calls_layers`; otherwise nothing waits for their weights before backward()."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 2) for _ in range(3))
        self.calls_layers = True

    def forward(self, inputs):
        if self.calls_layers:
            return sum(layer(inputs).sum() for layer in self.layers)
        return sum(torch.nn.functional.linear(inputs, layer.weight, layer.bias).sum()
                   for layer in self.layers)


class LateTest(BoxTestCase):
    def check_weights_after_a_late_backward(self, late, **options):
        """The wait for the weights `late` times out in backward(), and in the first step()."""
        torch.manual_seed(0)
        model = Linear()
        before = weights_of(model)
        local = torch.optim.SGD(model.parameters(), lr=0.5)
        with pbox.torch.DistributedOptimizer(local, model, rank=0,
                                             **self.options(1, **options)) as optimizer:
            wait, is_late = optimizer.client.wait, False

            def late_wait(tensor, timeout_ms=0):
                if is_late and tensor.name == late:
                    raise pbox.Timeout(f"{late} is late")
                wait(tensor, timeout_ms)

            optimizer.client.wait = late_wait
            for step in range(3):
                optimizer.zero_grad()
                loss = model(torch.full((4, 3), 1.0 + step))
                is_late = step == 1
                loss.backward()
                if is_late:
                    with self.assertRaisesRegex(pbox.Timeout, f"{late} is late"):
                        optimizer.step()
                    is_late = False
                optimizer.step()
                model.calls_layers = False
        for name, after, weight in zip(dict(model.named_parameters()), weights_of(model), before):
            gradient = 4 * (1 + 2 + 3) if name.endswith("weight") else 4 * 3
            numpy.testing.assert_allclose(after, weight - 0.5 * gradient, rtol=1e-5, err_msg=name)

    def test_gradients_after_a_timeout_in_backward_are_sent_by_step(self):
        self.check_weights_after_a_late_backward("layers.1.bias")

    def test_gradients_after_a_timeout_of_the_last_verdict_are_too(self):
        self.check_weights_after_a_late_backward("layers.0.weight", max_grad_norm=1e6)


class RefusalTest(BoxTestCase):
    def refused(self, words, local, model):
        with self.assertRaisesRegex(pbox.InvalidArgument, words):
            pbox.torch.DistributedOptimizer(local, model, **self.options(1), rank=0)

    def test_what_the_box_cannot_do_is_refused_by_name(self):
        model = make_model()
        parameters = list(model.parameters())
        self.refused("Adadelta cannot run", torch.optim.Adadelta(parameters), model)
        self.refused("lr_decay=0.5 is not supported",
                     torch.optim.Adagrad(parameters, lr_decay=0.5), model)
        self.refused("amsgrad", torch.optim.Adam(parameters, amsgrad=True), model)
        self.refused("dampening", torch.optim.SGD(parameters, 0.1, 0.9, dampening=0.1), model)
        self.refused("group 1 has momentum",
                     torch.optim.SGD([{"params": parameters[:1]},
                                      {"params": parameters[1:], "momentum": 0.5}], lr=0.1), model)
        self.refused("not among the named", torch.optim.SGD(make_model().parameters(), lr=0.1),
                     model)
        self.refused("float64", torch.optim.SGD(model.double().parameters(), lr=0.1), model)

    def test_gradients_on_the_box_cannot_be_clipped_unscaled_or_read(self):
        model = make_model()
        local = torch.optim.SGD(model.parameters(), lr=0.1)
        with pbox.torch.DistributedOptimizer(local, model, **self.options(1), rank=0) as optimizer:
            shard_loss(model, 0, 0).backward()
            weight = model[0].weight
            for use in (lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0),
                        lambda: torch.nn.utils.clip_grad_value_(model.parameters(), 1.0),
                        lambda: torch.isfinite(weight.grad),
                        lambda: weight.grad.mul_(0.5),
                        lambda: torch._foreach_mul_([weight.grad], 0.5),
                        lambda: weight.grad.is_sparse,  # a GradScaler reads it first
                        lambda: weight.grad + 1):
                with self.assertRaisesRegex(pbox.InvalidArgument, "pbox.torch.GradScaler"):
                    use()
            self.assertIn("sent to the box", repr(weight.grad))
            optimizer.step()
            self.assertIsNone(weight.grad)

    def test_statistics_that_the_ranks_do_not_share_are_warned_of(self):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        with self.assertWarnsRegex(UserWarning, r"statistics of 1 layers \(1, ...\)"):
            warn_of_statistics(model, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warn_of_statistics(model, 1)
            warn_of_statistics(torch.nn.SyncBatchNorm.convert_sync_batchnorm(
                copy.deepcopy(model)), 2)
            warn_of_statistics(make_model(), 2)

    def test_second_backward_before_step_is_refused(self):
        model = make_model()
        local = torch.optim.SGD(model.parameters(), lr=0.1)
        with pbox.torch.DistributedOptimizer(local, model, **self.options(1), rank=0) as optimizer:
            shard_loss(model, 0, 0).backward()
            with self.assertRaisesRegex(RuntimeError, "computed twice"):
                shard_loss(model, 1, 0).backward()
            with self.assertRaisesRegex(RuntimeError, "computed twice"), optimizer.no_sync():
                shard_loss(model, 1, 0).backward()
            optimizer.step()


if __name__ == "__main__":
    unittest.main()

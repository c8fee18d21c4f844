"""Compressed tensors through the client, and what they do to a training run."""

import os
import unittest
from unittest import mock

import numpy
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel

import pbox
import pbox.torch
from pbox.torch._compressed import BucketPlan
from support import BoxTestCase, Convolution, gradients_of, init_process_group, shard_loss

ELEMENTS, WORLD_SIZE, ROUNDS = 20_000, 2, 10
BYTES_PER_VALUE = {"none": 4, "q8": 66 / 64, "q4": 17 / 32}
STEP = {"none": 0, "q8": 1 / 127, "q4": 1 / 3.5}  # relative to a block's largest value


def pushed_by(rank):
    return numpy.random.default_rng(rank).uniform(-1, 1, (ROUNDS, ELEMENTS)).astype(numpy.float32)


def exchange(options, compression, by_tensor):
    """Returns all results, and the bytes that were pushed and pulled."""
    own = {} if by_tensor else {"compression": compression}
    results = []
    with pbox.Client(reduction="sum", **own, **options) as client:
        gradients = pushed_by(options["rank"])
        tensor = client.register("dense", gradients[0],
                                 compression=compression if by_tensor else None)
        client.join()
        for gradient in gradients:
            result = numpy.empty_like(gradient)
            client.push_pull(tensor, gradient, result)
            client.wait(tensor)
            results.append(result)
        client.barrier()
        statistics = client.statistics()
    return numpy.stack(results), statistics["bytes_pushed"], statistics["bytes_pulled"]


def exchange_as_chosen(options, rounds):
    """Returns the form of each exchange, the last compression_of(), the results, and statistics."""
    forms, results = [], []
    with pbox.Client(reduction="sum", **options) as client:
        gradient = numpy.ones(ELEMENTS, numpy.float32)
        tensor = client.register("dense", gradient, compression="auto")
        client.join()
        for _ in range(rounds):
            result = numpy.empty_like(gradient)
            client.push_pull(tensor, gradient, result)
            client.wait(tensor)
            forms.append(client.compression_of(tensor)[0])
            results.append(result)
        known = client.compression_of(tensor)
        client.barrier()
        return forms, known, numpy.stack(results), client.statistics()


def train_digits(options, compression):
    """Trains a small network on the digits, averaging gradients over the ranks. Returns the share
    of the test digits that it recognises."""
    data = load_digits()
    inputs = torch.tensor(data.data / 16, dtype=torch.float32)
    labels = torch.tensor(data.target)
    train, test = slice(0, 1400), slice(1400, None)
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    parameters = list(model.parameters())
    flat = torch.zeros(sum(parameter.numel() for parameter in parameters))
    rank, world_size = options["rank"], options["world_size"]
    with pbox.Client(compression=compression, numerics="ordered", **options) as client:
        tensor = client.register("gradients", flat)
        client.join()
        for step in range(150):
            chosen = torch.randperm(1400, generator=torch.Generator().manual_seed(step))[:64]
            own = chosen[rank::world_size]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[train][own]),
                                              labels[train][own]).backward()
            flat.copy_(torch.cat([parameter.grad.reshape(-1) for parameter in parameters]))
            client.push_pull(tensor, flat)
            client.wait(tensor)
            offset = 0
            for parameter in parameters:
                parameter.grad.copy_(flat[offset:offset + parameter.numel()].view_as(parameter))
                offset += parameter.numel()
            optimizer.step()
        client.barrier()
    with torch.no_grad():
        return (model(inputs[test]).argmax(1) == labels[test]).float().mean().item()


def average_gradients(options, store, compression, bucket_mb):
    """Returns the gradients of the same steps, averaged by gloo and compressed by the box, and the
    bytes that the latter has pushed."""
    init_process_group(options, store)
    models = []
    for _ in range(2):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(80, 96), torch.nn.Tanh(),
                                    torch.nn.Linear(96, 10))
        models.append(DistributedDataParallel(model, bucket_cap_mb=bucket_mb))
    plain, boxed = models
    collected = []
    with pbox.torch.attach(boxed, compression=compression, **options) as hook:
        for step in range(4):  # DDP rebuilds its buckets after the first step
            generator = torch.Generator().manual_seed(10 * step + options["rank"])
            inputs = torch.randn(8, 80, generator=generator)
            for model in models:
                model.zero_grad(set_to_none=True)
                model(inputs).square().mean().backward()
            collected.append((gradients_of(plain), gradients_of(boxed)))
        pushed = hook.client.statistics()["bytes_pushed"]
    dist.destroy_process_group()
    return collected, pushed


def average_with_empty_buckets(options, store):
    """Returns the gradients of a model with a bucket without elements, averaged by gloo and by the
    box."""
    init_process_group(options, store)
    plain, boxed = (DistributedDataParallel(Convolution()) for _ in range(2))
    collected = []
    with pbox.torch.attach(boxed, compression="q8", **options):
        for step in range(3):
            for model in (plain, boxed):
                model.zero_grad(set_to_none=True)
                shard_loss(model, step, options["rank"]).backward()
            collected.append((gradients_of(plain), gradients_of(boxed)))
    dist.destroy_process_group()
    return collected


class Bucket:
    """A bucket of DDP with all gradients of a model."""

    def __init__(self, model):
        self.parameters = lambda: list(model.parameters())
        self.gradients = lambda: [torch.ones_like(parameter) for parameter in model.parameters()]
        self.index = lambda: 0


def push_a_part_of_a_bucket(options):
    """Rank 1 pushes only the first gradient of a bucket. Returns whether rank 0's operation has
    ended, and its error."""
    model = torch.nn.Linear(3, 2)
    with pbox.torch.DDPCommHook(model, compression="q8", **options) as hook:
        lane = hook._channel._lanes[0]
        first = lane._tensors[id(model.weight)]
        if options["rank"] == 1:
            hook.client.push_pull(first, torch.ones(6))
            hook.client.wait(first)
            hook.client.barrier()
            return None
        operation = hook._channel.start(BucketPlan(Bucket(model)), timeout_s=1)
        hook.client.wait(first)
        return operation.done.wait(30), str(operation.error)


def optimize(options, compression):
    """Trains a model with DistributedOptimizer. Returns its weights, those that exact means would
    have given, and the bytes that were pushed."""
    torch.manual_seed(1)
    models = [torch.nn.Sequential(torch.nn.Linear(80, 96), torch.nn.Tanh(), torch.nn.Linear(96, 10))
              for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    boxed, exact = models
    optimizer = pbox.torch.DistributedOptimizer(torch.optim.SGD(boxed.parameters(), lr=0.1), boxed,
                                                compression=compression, **options)
    reference = torch.optim.SGD(exact.parameters(), lr=0.1)
    for step in range(10):
        inputs = [torch.randn(8, 80, generator=torch.Generator().manual_seed(100 * step + rank))
                  for rank in range(options["world_size"])]
        optimizer.zero_grad()
        boxed(inputs[options["rank"]]).square().mean().backward()
        optimizer.step()
        reference.zero_grad()
        sum(exact(one).square().mean() for one in inputs).div(len(inputs)).backward()
        reference.step()
    optimizer.synchronize()
    pushed = optimizer.client.statistics()["bytes_pushed"]
    optimizer.close()
    return [[parameter.detach().numpy().copy() for parameter in model.parameters()]
            for model in models] + [pushed]


class CompressionTest(BoxTestCase):
    def test_the_box_optimizes_compressed_parameters(self):
        for compression in ("q8", "q4"):
            (boxed, exact, pushed), (other, _, _) = self.run_ranks(
                optimize, WORLD_SIZE, compression)
            for one, two in zip(boxed, other):
                numpy.testing.assert_array_equal(one, two)
            for mine, wanted in zip(boxed, exact):
                self.assertLess(numpy.abs(mine - wanted).max(), 0.1 * STEP[compression])
            # The first matrix has 80 x 96 elements; others are too small, or of one dimension.
            large, small = 80 * 96, 96 + 96 * 10 + 10
            expected = 4 * (large + small) + 10 * (BYTES_PER_VALUE[compression] * large + 4 * small)
            self.assertAlmostEqual(pushed, expected, delta=0.01 * expected)

    def test_all_ranks_choose_alike_and_say_why(self):
        rounds = 50
        (first, known, results, statistics), (second, _, others, _) = self.run_ranks(
            exchange_as_chosen, WORLD_SIZE, rounds)
        self.assertEqual(first, second)
        self.assertEqual(first[:32], ["none"] * 16 + ["q8"] * 16)
        form, plain, compressed = known
        self.assertIn(form, ("none", "q8"))
        self.assertGreater(plain, 0)
        self.assertGreater(compressed, 0)
        self.assertEqual(first[48:], ["q8" if compressed * 1.05 < plain else "none"] * 2)
        self.assertEqual(statistics["chosen_tensors"], 1)
        numpy.testing.assert_array_equal(results, others)
        numpy.testing.assert_allclose(results, WORLD_SIZE, rtol=6 * STEP["q8"])

    def test_sums_are_alike_and_nothing_is_lost_over_rounds(self):
        exact = sum(pushed_by(rank) for rank in range(WORLD_SIZE))
        for compression in BYTES_PER_VALUE:
            for by_tensor in (False, True):
                with self.subTest(compression=compression, by_tensor=by_tensor):
                    (first, pushed, pulled), (second, _, _) = self.run_ranks(
                        exchange, WORLD_SIZE, compression, by_tensor,
                        job=f"{compression}-{by_tensor}")
                    numpy.testing.assert_array_equal(first, second)
                    # The residues of the ranks and of the box hold the rest.
                    bound = 4 * WORLD_SIZE * STEP[compression] + 1e-5
                    lost = numpy.abs(first.sum(0) - exact.sum(0)).max()
                    self.assertLess(lost, bound)
                    for count in (pushed, pulled):
                        values = ROUNDS * ELEMENTS * BYTES_PER_VALUE[compression]
                        self.assertAlmostEqual(count / values, 1, delta=.01)

    def test_digits_are_learned_as_well(self):
        right = {compression: self.run_ranks(train_digits, WORLD_SIZE, compression,
                                             job=f"digits-{compression}")[0]
                 for compression in BYTES_PER_VALUE}
        self.assertGreater(right["none"], 0.9)
        self.assertGreater(right["q8"], right["none"] - 0.01)
        self.assertGreater(right["q4"], right["none"] - 0.015)

    def test_ddp_averages_compressed_gradients(self):
        for compression, bytes_per_value, bucket_mb in (("q8", 66 / 64, 0.01), ("q4", 17 / 32, 25)):
            with self.subTest(compression):
                (first, pushed), (second, _) = self.run_ranks(
                    average_gradients, WORLD_SIZE, self.temporary_path("store"), compression,
                    bucket_mb, job=f"ddp-{compression}")
                full = 4 * (96 + 96 * 10 + 10)  # the biases, and the smaller weight
                self.assertEqual(pushed, 4 * (full + 80 * 96 * bytes_per_value))
                lost = 0
                for (exact, compressed), (_, others) in zip(first, second):
                    for one, other in zip(compressed, others):
                        numpy.testing.assert_array_equal(one, other)
                    for index in (1, 2, 3):
                        numpy.testing.assert_allclose(compressed[index], exact[index], rtol=1e-4,
                                                      atol=1e-6)
                    lost = lost + compressed[0] - exact[0]
                bound = 8 * STEP[compression] * max(numpy.abs(exact[0]).max() for exact, _ in first)
                self.assertLess(numpy.abs(lost).max(), bound)
                self.assertGreater(numpy.abs(lost).max(), 0)

    def test_ddp_may_have_buckets_without_elements(self):
        for collected in self.run_ranks(average_with_empty_buckets, WORLD_SIZE,
                                        self.temporary_path("store")):
            for plain, boxed in collected:
                for one, other in zip(plain, boxed):
                    numpy.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6)

    def test_a_late_gradient_that_is_not_the_first_of_its_bucket_ends_it_at_the_deadline(self):
        ranks = self.start_ranks(push_a_part_of_a_bucket, WORLD_SIZE)
        has_ended, text = ranks.result(0)
        self.assertTrue(has_ended)
        self.assertRegex(text, r"bias.*after 1000 ms: rank\D*1")

    def test_the_environment_sets_the_compression(self):
        gradient = numpy.ones(ELEMENTS, dtype=numpy.float32)
        with mock.patch.dict(os.environ, {"PBOX_COMPRESSION": "q4"}):
            client, tensor = self.joined(gradient)
        client.push_pull(tensor, gradient)
        client.wait(tensor)
        self.assertEqual(client.statistics()["bytes_pushed"], ELEMENTS // 32 * 17)
        with mock.patch.dict(os.environ, {"PBOX_COMPRESSION": "zip"}):
            with self.assertRaisesRegex(pbox.InvalidArgument, "none, q8, q4"):
                self.client()

    def test_what_cannot_be_compressed_is_refused(self):
        gradient = numpy.ones(ELEMENTS, dtype=numpy.float32)
        with self.assertRaisesRegex(pbox.InvalidArgument, "must be one of none, q8, q4"):
            self.client(compression="q2")
        with self.assertRaisesRegex(pbox.InvalidArgument, "PBOX_MODE_AGGREGATE"):
            self.client(compression="q8", mode="collective")
        client = self.client()
        with self.assertRaisesRegex(pbox.InvalidArgument, "compression needs f32"):
            client.register("half", gradient.astype(numpy.float16), compression="q8")
        with self.assertRaisesRegex(pbox.InvalidArgument, "must be one of none, q8, q4"):
            client.register("other", gradient, compression="q2")


if __name__ == "__main__":
    unittest.main()

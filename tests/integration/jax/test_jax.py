"""pbox.jax over a real box, with JAX from PyPI."""

import multiprocessing
import os
import unittest

import numpy

import pbox

_processes = multiprocessing.get_context("spawn")


def _run(function, rank, options, results):
    os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        with pbox.Client(mode="collective", rank=rank, **options) as client:
            client.join()
            results.put((rank, function(client), None))
    except BaseException as error:  # the parent shows it
        results.put((rank, None, f"{type(error).__name__}: {error}"))


def run_ranks(function, world_size, options):
    """Returns what function(client) returns on each rank, and the errors by rank."""
    results = _processes.Queue()
    ranks = [_processes.Process(target=_run, args=(function, rank, options, results))
             for rank in range(world_size)]
    for process in ranks:
        process.start()
    answers = sorted((results.get(timeout=300) for _ in ranks), key=lambda answer: answer[0])
    for process in ranks:
        process.join(60)
    return [answer[1] for answer in answers], [answer[2] for answer in answers]


def every_op(client):
    import jax
    import pbox.jax
    own = numpy.arange(1000, dtype="float32") % 7 + client.rank
    results = {}
    for op in ("sum", "mean", "min", "max"):
        combine = jax.jit(lambda array, op=op: pbox.jax.all_reduce(client, array, op))
        results[op] = numpy.asarray(combine(own))
    half = jax.numpy.full((3, 5), client.rank + 1, "bfloat16")
    results["bfloat16"] = numpy.asarray(pbox.jax.all_reduce(client, half), "float32")
    whole = jax.numpy.full((2,), client.rank + 1, "int32")
    results["int32"] = numpy.asarray(pbox.jax.all_reduce(client, whole))
    return results


def train(client):
    """Linear regression; each rank has half of the points."""
    import jax
    import pbox.jax
    points = numpy.arange(8, dtype="float32").reshape(2, 4)[client.rank] / 8
    targets = 3 * points + 1

    def loss(weights):
        return jax.numpy.mean((weights["slope"] * points + weights["offset"] - targets) ** 2)

    @jax.jit
    def step(weights, _):
        gradient = pbox.jax.all_reduce(client, jax.grad(loss)(weights), "mean")
        return jax.tree_util.tree_map(lambda w, g: w - 0.5 * g, weights, gradient), None

    start = {"slope": jax.numpy.float32(0), "offset": jax.numpy.float32(0)}
    weights, _ = jax.lax.scan(step, start, None, length=500)
    return {name: float(value) for name, value in weights.items()}


def disagree(client):
    import jax
    import pbox.jax
    array = jax.numpy.ones(10 + client.rank)
    return numpy.asarray(pbox.jax.all_reduce(client, array))


class Jax(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.box = pbox.LocalBox()
        cls.addClassCleanup(cls.box.close)

    def run_ranks(self, function, world_size):
        return run_ranks(function, world_size, {
            "box": self.box.control, "job": self.id().rpartition(".")[2],
            "world_size": world_size, "join_timeout_ms": 60000})

    def test_every_op_and_dtype(self):
        results, errors = self.run_ranks(every_op, 3)
        self.assertEqual(errors, [None] * 3)
        base = numpy.arange(1000, dtype="float32") % 7
        for result in results:
            numpy.testing.assert_array_equal(result["sum"], 3 * base + 3)
            numpy.testing.assert_array_equal(result["mean"], base + 1)
            numpy.testing.assert_array_equal(result["min"], base)
            numpy.testing.assert_array_equal(result["max"], base + 2)
            numpy.testing.assert_array_equal(result["bfloat16"], numpy.full((3, 5), 6))
            numpy.testing.assert_array_equal(result["int32"], [6, 6])

    def test_training_in_a_scan(self):
        results, errors = self.run_ranks(train, 2)
        self.assertEqual(errors, [None] * 2)
        self.assertEqual(results[0], results[1])
        self.assertAlmostEqual(results[0]["slope"], 3, places=2)
        self.assertAlmostEqual(results[0]["offset"], 1, places=2)

    def test_ranks_that_disagree_are_named(self):
        _, errors = self.run_ranks(disagree, 2)
        for error in errors:
            self.assertIn("all_reduce of 10 f32", error)
            self.assertIn("all_reduce of 11 f32", error)


if __name__ == "__main__":
    unittest.main()

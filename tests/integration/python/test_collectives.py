"""pbox.Client in mode collective: operations of numpy arrays and of torch tensors, without torch's
process group."""

import threading
import unittest

import numpy
import torch

import pbox
from support import BoxTestCase

WORLD_SIZE = 3


def every_verb(options):
    """Returns the results of every verb, and those of callbacks."""
    rank = options["rank"]
    with pbox.Client(mode="collective", **options) as client:
        client.join()
        mine = numpy.arange(6) + 10 * rank
        results = {
            "sum": mine.copy(), "everyone": numpy.zeros(18, mine.dtype),
            "segment": torch.zeros(2, dtype=torch.float64), "largest": mine.astype(numpy.uint8),
            "broadcast": numpy.full(3, rank, numpy.int32), "mean": numpy.full(5, rank, "float32")}
        told, ended = [], threading.Event()

        def note(operation, error):
            told.append((operation, error))
            ended.set()

        operations = [
            client.collective("all_reduce", results["sum"]),
            client.collective("all_gather", mine, results["everyone"]),
            client.collective("reduce_scatter", torch.arange(6, dtype=torch.float64),
                              results["segment"]),
            client.collective("all_reduce", results["largest"], op="max", priority=3),
            client.collective("broadcast", results["broadcast"], root=2),
            client.collective("all_reduce", results["mean"], op="mean"),
            client.collective("barrier", callback=note)]
        for operation in operations:
            client.wait_collective(operation, timeout_ms=30000)
        ended.wait(30)
        lists = {name: numpy.asarray(value).tolist() for name, value in results.items()}
        return lists, operations, told


def refused(options):
    """Returns the texts of the errors of calls that do not fit; then an operation succeeds."""
    texts = []
    with pbox.Client(mode="collective", **options) as client:
        client.join()
        floats = numpy.ones(6, numpy.float32)
        read_only = numpy.ones(6, numpy.float32)
        read_only.flags.writeable = False
        for arguments, keywords in (
                (("all_gather", floats, floats), {}),
                (("reduce_scatter", floats, numpy.zeros(2)), {}),
                (("all_reduce", read_only), {}),
                (("all_reduce", floats), {"op": "product"}),
                (("gather", floats), {}),
                (("all_reduce", numpy.ones(2, numpy.int16)), {}),
                (("broadcast", floats), {"root": WORLD_SIZE})):
            try:
                client.collective(*arguments, **keywords)
                texts.append("no error")
            except pbox.InvalidArgument as error:
                texts.append(str(error))
        client.wait_collective(client.collective("all_reduce", floats), timeout_ms=30000)
        return texts, floats.tolist()


class CollectivesTest(BoxTestCase):
    def test_every_verb_on_arrays_and_tensors(self):
        for rank, (results, operations, told) in enumerate(
                self.run_ranks(every_verb, WORLD_SIZE)):
            self.assertEqual(operations, list(range(7)))
            self.assertEqual(told, [(6, None)])
            self.assertEqual(results, {
                "sum": [30 + 3 * index for index in range(6)],
                "everyone": [10 * other + index for other in range(3) for index in range(6)],
                "segment": [6 * rank, 6 * rank + 3], "largest": [20, 21, 22, 23, 24, 25],
                "broadcast": [2, 2, 2], "mean": [1] * 5})

    def test_calls_that_do_not_fit_are_refused_and_leave_the_job_usable(self):
        for texts, floats in self.run_ranks(refused, WORLD_SIZE):
            for text, part in zip(texts, (
                    "one must have 3 times the elements", "output 2 of float64", "read-only",
                    "op is 'product'; it must be one of", "verb is 'gather'; it must be one of",
                    "input is int16: the box takes only", "root"), strict=True):
                self.assertIn(part, text)
            self.assertEqual(floats, [3] * 6)


if __name__ == "__main__":
    unittest.main()

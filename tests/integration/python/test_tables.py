"""Tables: rows that are pushed through the client, and torch's sparse gradients of embeddings."""

import unittest

import numpy
import torch

import pbox
import pbox.torch
from support import BoxTestCase

ROWS, WIDTH, STEPS, WORLD_SIZE = 400, 32, 6, 2
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
    # torch adds eps before it corrects the moments' bias, the box after that.
    "sparse_adam": (torch.optim.SparseAdam, {"lr": 0.01, "eps": 1e-13}),
}


class Bag(torch.nn.Module):
    """Embeddings of a few words, and a layer without sparse gradients."""

    def __init__(self, has_dense=True, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.words = torch.nn.Embedding(ROWS, WIDTH, sparse=True)
        self.topics = torch.nn.EmbeddingBag(ROWS, WIDTH, sparse=True, mode="mean")
        self.head = torch.nn.Linear(WIDTH, 3) if has_dense else None

    def forward(self, ids):
        hidden = self.words(ids).mean(1) + self.topics(ids)
        return hidden if self.head is None else self.head(hidden)


def loss_of(model, step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    ids = torch.randint(0, ROWS // 2, (8, 5), generator=generator)  # the other half is not used
    return model(ids).square().mean() if rank < 2 else 0 * model(ids).sum()


def train(options, name, has_dense):
    kind, values = OPTIMIZERS[name]
    model = Bag(has_dense, seed=options["rank"])
    with pbox.torch.DistributedOptimizer(kind(model.parameters(), **values), model,
                                         **options) as optimizer:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, step, options["rank"]).backward()
            optimizer.step()
        optimizer.synchronize()
        pushed = optimizer.client.statistics()["bytes_pushed"]
        optimizer.client.barrier()
    return [weight.detach().numpy().copy() for weight in model.parameters()], pushed


def train_locally(name, has_dense, world_size):
    """Trains on the mean of all ranks' gradients with torch's own optimizers."""
    kind, values = OPTIMIZERS[name]
    model = Bag(has_dense)
    optimizer = kind(model.parameters(), **values)
    for step in range(STEPS):
        optimizer.zero_grad()
        sum(loss_of(model, step, rank) for rank in range(world_size)).div(world_size).backward()
        optimizer.step()
    return [weight.detach().numpy().copy() for weight in model.parameters()]


def push_some_rows(options):
    """Returns the table after two exchanges in which rank r pushes rows r and 10, then none."""
    rank = options["rank"]
    table = numpy.zeros((ROWS, WIDTH), dtype=numpy.float32)
    with pbox.Client(mode="optimize", reduction="sum", **options) as client:
        tensor = client.register("table", table, table=True)
        client.set_optimizer("sgd", 1.0)
        client.join()
        client.init_weights(tensor, table)
        client.wait(tensor)
        ids = numpy.array([rank, 10], dtype=numpy.int64)
        rows = numpy.full((2, WIDTH), -1 - rank, dtype=numpy.float32)
        client.push_pull_rows(tensor, ids, rows, table)
        client.wait(tensor)
        done = []
        client.push_pull_rows(tensor, ids[:0], rows[:0], table,
                              callback=lambda tensor, error: done.append(error))
        client.wait(tensor)
        client.barrier()
    return table, done


class TablesTest(BoxTestCase):
    def test_rows_of_all_ranks_come_back(self):
        expected = numpy.zeros((ROWS, WIDTH), dtype=numpy.float32)
        expected[0], expected[1], expected[10] = 1, 2, 3
        for table, done in self.run_ranks(push_some_rows, WORLD_SIZE):
            numpy.testing.assert_array_equal(table, expected)
            self.assertEqual(done, [None])

    def test_sparse_gradients_of_embeddings_train_as_with_torchs_optimizers(self):
        for name in OPTIMIZERS:
            has_dense = name != "sparse_adam"  # SparseAdam refuses dense gradients
            with self.subTest(name):
                results = self.run_ranks(train, WORLD_SIZE, name, has_dense, job=name)
                expected = train_locally(name, has_dense, WORLD_SIZE)
                for weights, pushed in results:
                    for one, other in zip(weights, expected):
                        numpy.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
                    # A rank pushes the initial weights, and in each step the rows of 40 words.
                    whole = 2 * ROWS * WIDTH * 4
                    self.assertLess(pushed, whole + STEPS * whole / 2)

    def test_gradients_that_no_sync_has_added_up_stay_sparse(self):
        model = Bag()
        optimizer = pbox.torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model, **self.options(1, rank=0))
        with optimizer:
            with optimizer.no_sync():
                loss_of(model, 0, 0).backward()
            loss_of(model, 1, 0).backward()
            optimizer.step()
            optimizer.synchronize()
        local = Bag()
        (loss_of(local, 0, 0) + loss_of(local, 1, 0)).backward()
        torch.optim.SGD(local.parameters(), lr=0.1).step()
        for one, other in zip(model.parameters(), local.parameters()):
            torch.testing.assert_close(one, other)

    def test_an_embedding_that_no_batch_has_used_pushes_no_rows(self):
        model = Bag()
        before = model.words.weight.detach().clone()
        optimizer = pbox.torch.DistributedOptimizer(
            torch.optim.Adam(model.parameters(), lr=0.1), model, **self.options(1, rank=0))
        with optimizer:
            model.topics(torch.tensor([[1, 2]])).sum().backward()
            optimizer.step()
            optimizer.synchronize()
        self.assertTrue(torch.equal(model.words.weight, before))

    def test_a_sparse_gradient_without_a_table_is_refused(self):
        model = Bag()
        optimizer = pbox.torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            named_parameters=model.named_parameters(), **self.options(1, rank=0))
        with optimizer:
            with self.assertRaisesRegex(pbox.InvalidArgument, "(words|topics).weight is sparse"):
                loss_of(model, 0, 0).backward()
            for parameter in model.parameters():
                parameter.grad = None

    def test_options_of_adagrad_that_the_box_lacks_are_refused(self):
        model = Bag()
        with self.assertRaisesRegex(pbox.InvalidArgument, "lr_decay=0.5 is not supported"):
            pbox.torch.DistributedOptimizer(
                torch.optim.Adagrad(model.parameters(), lr_decay=0.5), model,
                **self.options(1, rank=0))

    def test_a_list_of_rows_that_does_not_fit_is_refused(self):
        table = numpy.zeros((ROWS, WIDTH), dtype=numpy.float32)
        client = self.client(mode="optimize", rank=0)
        with self.assertRaisesRegex(pbox.InvalidArgument, r"the shape \(7,\): a table has rows"):
            client.register("flat", numpy.zeros(7, dtype=numpy.float32), table=True)
        client = self.client(mode="optimize", rank=0)
        tensor = client.register("table", table, table=True)
        client.set_optimizer("sgd", 1.0)
        client.join()
        client.init_weights(tensor, table)
        client.wait(tensor)
        rows = numpy.zeros((2, WIDTH), dtype=numpy.float32)
        ids = numpy.array([3, 4])
        for refused, words in (((ids.astype(numpy.int32), rows), "are int32"),
                               ((ids.reshape(1, 2), rows), r"have the shape \(1, 2\)"),
                               ((ids, rows[:1]), "2 rows of 32 elements"),
                               ((ids, rows.astype(numpy.float16)), "elements of float16"),
                               ((ids[::-1].copy(), rows), "they must ascend"),
                               ((numpy.array([3, ROWS]), rows), "the table has 400 rows")):
            with self.assertRaisesRegex(pbox.InvalidArgument, words):
                client.push_pull_rows(tensor, *refused, table)


if __name__ == "__main__":
    unittest.main()

"""A model that DistributedOptimizer has hooks in: forwards wait for weights that come late, copies
are independent, and what the box would overwrite is refused."""

import contextlib
import copy
import io
import unittest

import numpy
import torch
from torch.nn.utils import prune
from torch.optim import swa_utils

import pbox
import pbox.torch
from support import BoxTestCase, weights_of


def write_when_waited_for(client):
    """From now on a tensor's new weights are written when they are waited for, and not before, as
    with a slow box."""
    push_pull, wait, hidden = client.push_pull, client.wait, {}

    def late_push_pull(tensor, gradient, result):
        hidden[tensor.id] = result, result.clone()
        push_pull(tensor, gradient, hidden[tensor.id][1])

    def late_wait(tensor, *arguments):
        wait(tensor, *arguments)
        if tensor.id in hidden:
            result, new = hidden.pop(tensor.id)
            result.numpy()[:] = new.numpy()  # torch's counter of changes does not see libpbox's

    client.push_pull, client.wait = late_push_pull, late_wait


class Attention(torch.nn.Module):
    """Reads weights of layers that it does not call."""

    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(4, 4), _SelfAttention())
        self.classes = torch.nn.Linear(4, 2)

    def forward(self, inputs):
        return self.classes(self.encoder(inputs))


class _SelfAttention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(4, 2)

    def forward(self, inputs):
        return self.attention(inputs, inputs, inputs, need_weights=False)[0]


def wrapped(wrap):
    """Returns a model whose layers compute their weight from parameters in a hook."""
    return torch.nn.Sequential(wrap(torch.nn.Linear(4, 4)), torch.nn.Tanh(),
                               wrap(torch.nn.Linear(4, 2)))


def make_encoder():
    """Returns a model without dropout."""
    encoder = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    return torch.nn.Sequential(torch.nn.Unflatten(0, (1, -1)), torch.nn.Linear(4, 4), encoder)


class ModelTest(BoxTestCase):
    def optimizer(self, model, **options):
        return pbox.torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model, rank=0,
            **self.options(1, **options))

    @staticmethod
    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.linspace(-1, 1, 12).reshape(3, 4)).square().sum().backward()
        optimizer.step()

    def check_late_step(self, make, call, after_step=lambda model: None, **options):
        """After a step whose weights come late, `call(model)` must equal that of a local run."""
        torch.manual_seed(0)
        model = make()
        with self.optimizer(model, **options) as optimizer:
            self.step(model, optimizer)  # after this the layers that are called are known
            optimizer.synchronize()
            write_when_waited_for(optimizer.client)
            self.step(model, optimizer)
            after_step(model)
            ours = call(model).detach().numpy().copy()
        torch.manual_seed(0)
        local = make()
        local_optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
        for _ in range(2):
            self.step(local, local_optimizer)
        after_step(local)
        numpy.testing.assert_allclose(ours, call(local).detach().numpy(), rtol=1e-4, atol=1e-6)


class ForwardTest(ModelTest):
    def test_weights_that_a_hook_computes_from_parameters_are_the_new_ones(self):
        for index, wrap in enumerate((
                torch.nn.utils.weight_norm, torch.nn.utils.spectral_norm,
                lambda layer: prune.l1_unstructured(layer, "weight", 2))):
            with self.subTest(index):
                self.check_late_step(lambda wrap=wrap: wrapped(wrap),
                                     lambda model: model(torch.ones(2, 4)), job=f"wrap-{index}")

    def test_a_part_that_is_called_first_waits_for_all_weights_that_it_reads(self):
        self.check_late_step(Attention, lambda model: model.encoder(torch.ones(2, 4)))

    def test_a_part_in_eval_mode_does_too(self):
        def call(model):  # torch's fast path calls none of the encoder's parts
            with torch.no_grad():
                return model[2](torch.linspace(-1, 1, 12).reshape(1, 3, 4))

        self.check_late_step(make_encoder, call, lambda model: model[2].eval())

    def test_the_state_of_a_part_has_the_new_weights(self):
        self.check_late_step(Attention, lambda model: model.encoder.state_dict()["0.weight"])


class CopyTest(ModelTest):
    def test_copies_of_a_model_are_independent_of_the_optimizer(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
        with self.optimizer(model) as optimizer:
            self.step(model, optimizer)
            optimizer.synchronize()
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            weights_only = {} if torch.__version__ < "2" else {"weights_only": False}
            copies = (copy.deepcopy(model), torch.load(file, **weights_only),
                      swa_utils.AveragedModel(model).module)
            self.step(model, optimizer)
            optimizer.client.wait = None  # no copy may call it
            for other in copies:
                other.load_state_dict(copies[0].state_dict())
                before = other(torch.ones(2, 4))
                before.sum().backward()
                torch.optim.SGD(other.parameters(), lr=0.1).step()
                self.assertFalse(torch.equal(other(torch.ones(2, 4)), before))
            del optimizer.client.wait


class RefusalTest(ModelTest):
    def test_memory_that_is_replaced_is_refused_by_name(self):
        def convert(model):
            model.to(memory_format=torch.channels_last)

        def assign(model):
            model.images.bias.data = model.images.bias.detach().clone()

        for replace, name in ((convert, "images.weight"), (assign, "images.bias")):
            model = torch.nn.Sequential()
            model.add_module("images", torch.nn.Conv2d(3, 4, 3))
            with self.subTest(name), self.optimizer(model, job=name) as optimizer:
                replace(model)
                with self.assertRaisesRegex(pbox.InvalidArgument, f"the memory of {name} has been"):
                    model(torch.ones(1, 3, 5, 5)).sum().backward()
                    optimizer.step()

    def test_weights_cannot_be_loaded_before_close(self):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        saved = copy.deepcopy(model.state_dict())
        with self.optimizer(model) as optimizer:
            self.step(model, optimizer)
            optimizer.synchronize()
            before = weights_of(model)
            with self.assertRaisesRegex(pbox.InvalidArgument, "would write 0.weight, and the box"):
                model.load_state_dict(saved)
            with self.assertRaisesRegex(pbox.InvalidArgument, "would write weight, and the box"):
                model[1].load_state_dict(model[1].state_dict())
            for mine, old in zip(weights_of(model), before):
                numpy.testing.assert_array_equal(mine, old)
            # Buffers are this rank's own.
            model.load_state_dict({"1.running_mean": torch.full((4,), 3.0)}, strict=False)
            self.assertEqual(model[1].running_mean.tolist(), [3.0] * 4)
        model.load_state_dict(saved)
        self.assertTrue(torch.equal(model[0].weight, saved["0.weight"]))

    def test_embeddings_that_change_their_own_weights_are_refused(self):
        for kind in (torch.nn.Embedding, torch.nn.EmbeddingBag):
            model = torch.nn.Sequential(kind(8, 4, max_norm=1.0), torch.nn.Linear(4, 2))
            with self.assertRaisesRegex(pbox.InvalidArgument, "0 is an embedding with max_norm=1"):
                self.optimizer(model)
            model[0].weight.requires_grad_(False)
            with contextlib.closing(self.optimizer(model, job=kind.__name__)):
                pass


if __name__ == "__main__":
    unittest.main()

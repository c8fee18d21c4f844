"""The accuracy that a model reaches, over several seeds: with gradients exchanged as f32, bf16, q8,
q4 and by PowerSGD; with the box as optimizer; and with DiLoCo and LocalSGD, which exchange every 24
steps. Four more systems are computed here in Python: q4 with error feedback and without, rounded at
random and to the nearest, to show what each is worth. `pbox-perf accuracy` runs this script.
Progress goes to standard error, one JSON object to standard output."""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy
import torch
import torch.distributed as dist
from ranks import Ranks, use_tree
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

use_tree()
sys.path[:0] = [str(pathlib.Path(__file__).parents[2] / "tools" / "demo_training"),
                str(pathlib.Path(__file__).parents[1] / "consistency"),
                str(pathlib.Path(__file__).parents[2] / "docs" / "examples")]
import characters
import digits
import pbox.torch
import problems

COMPRESSED_ELEMENTS_MIN = 4096  # smaller tensors stay whole, as in libpbox
SYNC_EVERY = 24  # steps of DiLoCo and LocalSGD between two exchanges of a parameter


class Digits:
    """The demo's convolutional network and data."""

    steps, batch, rate = 240, digits.GLOBAL_BATCH, 0.05

    def __init__(self, seed, _):
        self._train, self._test = digits.load()
        self._seed = seed

    def make_model(self):
        model = digits.make_model()
        torch.manual_seed(self._seed)
        for layer in model:
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
        return model

    def share(self, step, rank, world_size):
        generator = torch.Generator().manual_seed(1000 * self._seed + step)
        chosen = torch.randperm(len(self._train[1]), generator=generator)[:self.batch]
        own = chosen[rank::world_size]
        return self._train[0][own], self._train[1][own]

    loss = staticmethod(digits.loss_of)

    def test(self, model):
        return digits.accuracy(model, self._test)


class Text:
    """The next character of a text. The last tenth of the text is the test."""

    steps, batch, rate = 400, 32, 0.1

    def __init__(self, seed, _):
        self._train, self._test, self._characters = characters.load_text()
        self._seed = seed

    def make_model(self):
        torch.manual_seed(self._seed)
        return characters.Model(self._characters)

    def share(self, step, rank, world_size):
        generator = torch.Generator().manual_seed(1000 * self._seed + step)
        last = len(self._train) - characters.CONTEXT - 1
        starts = torch.randint(last, (self.batch,), generator=generator)
        return characters.windows(self._train, starts[rank::world_size].tolist())

    @staticmethod
    def loss(model, share):
        return characters.loss_of(model, *share)

    def test(self, model):
        starts = range(0, len(self._test) - characters.CONTEXT - 1, characters.CONTEXT)
        inputs, expected = characters.windows(self._test, starts)
        with torch.no_grad():
            return (model(inputs).argmax(2) == expected).float().mean().item()


class Words:
    """The language of a word, by the hashed pieces of it: the data of perf/consistency. A gradient
    is sparse: a batch has a fraction of all pieces."""

    steps, batch, rate = 400, 512, 8.0

    def __init__(self, seed, folder):
        with numpy.load(pathlib.Path(folder, "words.npz")) as stored:
            columns, starts, labels = (torch.from_numpy(stored[name]).long()
                                       for name in ("columns", "starts", "labels"))
        self._pieces = columns.split((starts[1:] - starts[:-1]).tolist())
        self._labels, self._seed = labels, seed
        is_tested = torch.arange(len(labels)) % problems.Words.TEST_SHARE == 0
        self._train, self._test = (~is_tested).nonzero().flatten(), is_tested.nonzero().flatten()

    def make_model(self):
        torch.manual_seed(self._seed)
        shape = problems.Words.FEATURES, len(problems.DICTIONARIES)
        model = torch.nn.EmbeddingBag(*shape, mode="sum")
        torch.nn.init.zeros_(model.weight)
        return model

    def _of(self, numbers):
        pieces = [self._pieces[number] for number in numbers.tolist()]
        lengths = torch.tensor([len(one) for one in pieces])
        scale = torch.repeat_interleave(lengths.float().rsqrt(), lengths)
        return torch.cat(pieces), lengths.cumsum(0) - lengths, scale, self._labels[numbers]

    def share(self, step, rank, world_size):
        generator = torch.Generator().manual_seed(1000 * self._seed + step)
        chosen = torch.randint(len(self._train), (self.batch,), generator=generator)
        return self._of(self._train[chosen[rank::world_size]])

    @staticmethod
    def loss(model, share):
        pieces, starts, scale, labels = share
        return torch.nn.functional.cross_entropy(model(pieces, starts, scale), labels)

    def test(self, model):
        pieces, starts, scale, labels = self._of(self._test)
        with torch.no_grad():
            return (model(pieces, starts, scale).argmax(1) == labels).float().mean().item()


PROBLEMS = {"digits": Digits, "text": Text, "words": Words}


class PythonQ4:
    """DDP's hook: q4 as docs/compression.md defines it, computed by torch and summed by Gloo. With
    feedback it has a residue for the rank and one for the box; the latter is the same on every
    rank, because all compute the box's part alike."""

    block, steps = 32, 7

    def __init__(self, rank, seed, has_feedback, is_random):
        self._own = torch.Generator().manual_seed(2 * seed + 1000 * (rank + 1))
        self._boxes = torch.Generator().manual_seed(seed)
        self._residues = {} if has_feedback else None
        self._is_random = is_random
        self._squares = []  # sums of squares of the error and of the mean, by bucket and step

    def _rounded(self, values, key, generator):
        residue = None if self._residues is None else self._residues.setdefault(
            key, torch.zeros_like(values))
        if residue is not None:
            values = values + residue
        padded = torch.nn.functional.pad(values.flatten(), (0, -values.numel() % self.block))
        blocks = padded.view(-1, self.block)
        largest = blocks.abs().amax(1, keepdim=True).clamp_min(2.0**-100)
        scale = torch.exp2(torch.ceil(torch.log2(largest / self.steps)))
        draws = torch.rand(blocks.shape, generator=generator) if self._is_random else 0.5
        rounded = torch.floor(blocks / scale + draws).clamp(-self.steps, self.steps) * scale
        rounded = rounded.flatten()[:values.numel()].view_as(values)
        if residue is not None:
            residue.copy_(values - rounded)
        return rounded

    def exchange(self, _, bucket):
        pairs = list(zip(bucket.parameters(), bucket.gradients()))
        large = [(id(parameter), gradient) for parameter, gradient in pairs
                 if gradient.numel() >= COMPRESSED_ELEMENTS_MIN]
        buffer = bucket.buffer()
        exact = buffer.clone()
        dist.all_reduce(exact)
        exact.div_(dist.get_world_size())
        for key, gradient in large:
            gradient.copy_(self._rounded(gradient, (key, "rank"), self._own))
        dist.all_reduce(buffer)
        buffer.div_(dist.get_world_size())
        for key, gradient in large:
            gradient.copy_(self._rounded(gradient, (key, "box"), self._boxes))
        self._squares.append([values.square().sum().item() for values in (buffer - exact, exact)])
        future = torch.futures.Future()
        future.set_result(buffer)
        return future

    def report(self):
        """Returns the mean of |result - mean|^2 / |mean|^2 over the buckets of all steps."""
        return {"error": statistics.mean(error / whole for error, whole in self._squares if whole)}


def nothing():
    pass


@dataclasses.dataclass
class Training:
    """The parts of a training that differ between systems. After the last step, `finish` gives the
    model its final weights."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    report: Callable[[], dict[str, Any]]
    finish: Callable[[], None] = nothing
    close: Callable[[], None] = nothing


def sgd(model, problem):
    return torch.optim.SGD(model.parameters(), lr=problem.rate, momentum=0.9)


def attach(compression):
    def begin(model, problem, *_):
        parallel = DistributedDataParallel(model)
        hook = pbox.torch.attach(parallel, compression=compression)
        return Training(parallel, sgd(parallel, problem), hook.client.statistics, close=hook.close)
    return begin


def over_group(register):
    def begin(model, problem, *others):
        parallel = DistributedDataParallel(model)
        register(parallel, *others)
        return Training(parallel, sgd(parallel, problem), dist.group.WORLD.statistics)
    return begin


def optimize(compression):
    def begin(model, problem, *_):
        optimizer = pbox.torch.DistributedOptimizer(sgd(model, problem), model,
                                                    compression=compression)
        return Training(model, optimizer, optimizer.client.statistics, optimizer.synchronize,
                        optimizer.close)
    return begin


def exchange_rarely(kind, **options):
    def begin(model, problem, *_):
        inner = sgd(model, problem)
        outer = kind(model, inner, sync_every=SYNC_EVERY, **options)
        return Training(model, inner, outer.client.statistics, outer.synchronize, outer.close)
    return begin


def use_bf16(model, *_):
    """Averages gradients as bf16. DDP's own hook of this kind refuses every backend but NCCL."""

    def hook(_, bucket):
        narrow = bucket.buffer().bfloat16() / dist.get_world_size()
        future = dist.all_reduce(narrow, async_op=True).get_future()
        return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))

    model.register_comm_hook(None, hook)


def use_powersgd(model, _rank, seed, arguments):
    state = powerSGD_hook.PowerSGDState(process_group=None, start_powerSGD_iter=10,
                                        matrix_approximation_rank=arguments.powersgd_rank,
                                        random_seed=seed)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def compute(has_feedback, is_random):
    def begin(model, problem, rank, seed, _):
        parallel = DistributedDataParallel(model)
        q4 = PythonQ4(rank, seed, has_feedback, is_random)
        parallel.register_comm_hook(None, q4.exchange)
        return Training(parallel, sgd(parallel, problem), q4.report)
    return begin


# The backend of the process group, and the function that begins a Training.
SYSTEMS = {
    "f32": ("gloo", attach("none")),
    "bf16": ("pbox", over_group(use_bf16)),
    "q8": ("gloo", attach("q8")),
    "q4": ("gloo", attach("q4")),
    "powersgd": ("pbox", over_group(use_powersgd)),
    "optimizer": ("gloo", optimize("none")),
    "optimizer-q8": ("gloo", optimize("q8")),
    "optimizer-q4": ("gloo", optimize("q4")),
    "local-sgd": ("gloo", exchange_rarely(pbox.torch.LocalSGD)),
    "diloco": ("gloo", exchange_rarely(pbox.torch.DiLoCo)),
    "diloco-q8": ("gloo", exchange_rarely(pbox.torch.DiLoCo, wire="q8")),
    "diloco-q4": ("gloo", exchange_rarely(pbox.torch.DiLoCo, wire="q4")),
    "diloco-streaming": ("gloo", exchange_rarely(pbox.torch.DiLoCo, fragments=4, delay=2,
                                                 alpha=0.5)),
    "q4-python": ("gloo", compute(has_feedback=True, is_random=True)),
    "q4-no-feedback": ("gloo", compute(has_feedback=False, is_random=True)),
    "q4-nearest": ("gloo", compute(has_feedback=True, is_random=False)),
    "q4-nearest-no-feedback": ("gloo", compute(has_feedback=False, is_random=False)),
}


def prepare_training(system, problem_name, seed, arguments, store):
    """Returns the `prepare` of Ranks whose one turn is a whole training."""
    backend, begin = SYSTEMS[system]

    def prepare(rank):
        torch.set_num_threads(1)
        os.environ["PBOX_JOB"] = f"{problem_name}-{system}-{seed}"
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank,
                                world_size=arguments.workers)
        problem = PROBLEMS[problem_name](seed, pathlib.Path(store).parent)
        model = problem.make_model()
        training = begin(model, problem, rank, seed, arguments)

        def train():
            for step in range(problem.steps):
                share = problem.share(step, rank, arguments.workers)
                training.optimizer.zero_grad()
                loss = problem.loss(training.model, share)
                loss.backward()
                training.optimizer.step()
            training.finish()
            result = {"accuracy": problem.test(model), "loss": loss.item()}
            reported = training.report()
            if "error" in reported:
                result["error"] = reported["error"]
            else:
                result["bytes"] = (reported["bytes_pushed"] +
                                   reported["bytes_pulled"]) / problem.steps
            dist.barrier()
            training.close()
            return result

        return train

    return prepare


def summary(problem, system, results):
    accuracies = [result["accuracy"] for result in results]
    figures = {"problem": problem, "system": system,
               "accuracy": statistics.mean(accuracies),
               "least": min(accuracies), "most": max(accuracies),
               "loss": statistics.mean(result["loss"] for result in results)}
    for given, name in (("bytes", "bytes_per_step"), ("error", "normalised_error")):
        if given in results[0]:
            figures[name] = statistics.mean(result[given] for result in results)
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4, help="number of ranks")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--problems", default=",".join(PROBLEMS), help="comma-separated")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="comma-separated")
    parser.add_argument("--powersgd-rank", type=int, default=2, help="rank of PowerSGD's matrices")
    arguments = parser.parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    runs = []
    with pbox.LocalBox() as box, tempfile.TemporaryDirectory(prefix="pbox-accuracy-") as folder:
        os.environ["PBOX_BOX"] = box.control
        if "words" in arguments.problems.split(","):
            problems.Words.prepare(folder)
        for problem in arguments.problems.split(","):
            for system in arguments.systems.split(","):
                results = []
                for seed in range(arguments.seeds):
                    store = f"{folder}/{problem}-{system}-{seed}"
                    ranks = Ranks(arguments.workers,
                                  prepare_training(system, problem, seed, arguments, store))
                    results.append(ranks.turn()[0][0])
                    ranks.close()
                runs.append(summary(problem, system, results))
                print(problem, system, *(f"{result['accuracy']:.4f}" for result in results),
                      f"{runs[-1].get('bytes_per_step', 0):.0f} bytes", file=sys.stderr)
    print(json.dumps({"torch": torch.__version__, "workers": arguments.workers,
                      "seeds": arguments.seeds, "runs": runs}))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Trains a small language model over characters with DiLoCo, on learners behind slow links.

Each learner is one process, anywhere. It trains on its own and exchanges once in 24 steps. Start it
on each machine, with a number of its own:

    PBOX_BOX=box:9541 python3 characters.py --rank 0 --world-size 4

A learner that is lost, whether it died, was stopped or is cut off, does not hold up the others. One
that was stopped rejoins by itself. Start one that died again with --rejoin. Every Debian system has
the text: the license GPL-3, whose last tenth is the test.

At each exchange a learner prints a line of its step, its loss and the seconds since it began to
train. The last line has the loss of the test with the box's weights.
"""

import argparse
import pathlib
import time

import torch

import pbox
import pbox.torch

TEXT = pathlib.Path("/usr/share/common-licenses/GPL-3")
CONTEXT = 64
BATCH = 8


class Model(torch.nn.Module):
    """A transformer that predicts the next character."""

    def __init__(self, characters, width=64, heads=4, depth=2):
        super().__init__()
        self.embedding = torch.nn.Embedding(characters, width)
        self.position = torch.nn.Parameter(torch.randn(CONTEXT, width) / 50)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0, batch_first=True,
                                             norm_first=True) for _ in range(depth))
        self.head = torch.nn.Linear(width, characters)
        mask = torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, characters):
        values = self.embedding(characters) + self.position
        for layer in self.layers:
            values = layer(values, self.mask)
        return self.head(values)


def load_text():
    """Returns the text for training and that of the test, as numbers, and how many there are."""
    text = TEXT.read_text(encoding="utf-8")
    numbers = {character: number for number, character in enumerate(sorted(set(text)))}
    encoded = torch.tensor([numbers[character] for character in text])
    border = len(encoded) * 9 // 10
    return encoded[:border], encoded[border:], len(numbers)


def windows(text, starts):
    """Returns the windows of the text that begin there, and for each character the next one."""
    rows = torch.stack([text[start:start + CONTEXT + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


def loss_of(model, inputs, targets):
    return torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def join(model, inner, arguments, rejoin):
    # Without a quorum the others wait for a lost learner once, for two seconds.
    return pbox.torch.DiLoCo(
        model, inner, sync_every=24, fragments=4, delay=4, alpha=0.5,
        wire=arguments.wire, quorum=arguments.quorum, job=arguments.job, rank=arguments.rank,
        world_size=arguments.world_size, on_worker_lost="partial",
        lost_timeout_ms=2000, rejoin=rejoin)


def train(model, inner, texts, arguments, rejoin):
    """Trains up to the last step as a member of the job, and prints the loss of the test."""
    text, test = texts
    data = torch.Generator().manual_seed(1000 * arguments.seed + arguments.rank)
    with join(model, inner, arguments, rejoin) as diloco:
        print(f"trains from step {diloco.steps}", flush=True)
        begin = time.monotonic()
        while diloco.steps < arguments.steps:
            step_ends = time.monotonic() + arguments.step_ms / 1000
            starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=data)
            loss = loss_of(model, *windows(text, starts.tolist()))
            inner.zero_grad()
            loss.backward()
            inner.step()
            if diloco.steps % 24 == 0:
                print(f"step {diloco.steps} loss {loss.item():.3f} "
                      f"seconds {time.monotonic() - begin:.2f}", flush=True)
            time.sleep(max(0.0, step_ends - time.monotonic()))
        diloco.synchronize()
        with torch.no_grad():
            loss = loss_of(model, *windows(test, range(0, len(test) - CONTEXT - 1, CONTEXT)))
        print(f"test loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, required=True, help="number of this learner, from 0")
    parser.add_argument("--world-size", type=int, required=True, help="number of learners")
    parser.add_argument("--job", default="characters", help="name of the job")
    parser.add_argument("--steps", type=int, default=480, help="steps to train (480)")
    parser.add_argument("--wire", default="q8", help="form of the changes sent: f32, q8 or q4 (q8)")
    parser.add_argument("--quorum", type=int,
                        help="number of learners to wait for; then only the grace (all)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and the data (0)")
    parser.add_argument("--rejoin", action="store_true", help="take the place of a lost learner")
    parser.add_argument("--step-ms", type=float, default=0,
                        help="minimum time of a step, to imitate a larger model (0)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    text, test, characters = load_text()
    model = Model(characters)
    inner = torch.optim.AdamW(model.parameters(), lr=0.003)
    rejoin = arguments.rejoin
    while True:
        try:
            train(model, inner, (text, test), arguments, rejoin)
            return
        except pbox.WorkerLost as error:
            print(f"this learner was lost and rejoins: {error}", flush=True)
            rejoin = True


if __name__ == "__main__":
    main()

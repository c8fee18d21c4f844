"""tools/demo's training: with the box and without it, and whether both come to the same weights."""

import argparse
import signal
import sys
import time

import numpy
import torch

import ranks
import training

ACCURACY_MIN = 0.95
# Of any weight. Sums in another order differ in the last bit of a float; training enlarges that.
DIFFERENCE_MAX = 1e-3

PARTS = (
    ("The box averages the gradients: DistributedDataParallel with pbox.torch.DDPCommHook, "
     "SGD with momentum", training.averaged_by_the_box, training.sgd),
    ("The box runs the optimizer: pbox.torch.DistributedOptimizer, Adam",
     training.optimized_by_the_box, training.adam))


def say(text=""):
    print(text, flush=True)


class Table:
    """A line per epoch."""

    def __init__(self):
        self.epoch = 0
        self.accuracy = 0.0
        say("   epoch     loss   accuracy   exchanged       rate")

    def add(self, reports):
        self.epoch += 1
        self.accuracy = reports[0]["accuracy"]
        megabytes = sum(report["exchanged"] for report in reports) / 1e6
        seconds = max(report["seconds"] for report in reports)
        loss = sum(report["loss"] for report in reports) / len(reports)
        say(f"   {self.epoch:5d}  {loss:7.4f}   {self.accuracy:6.1%}   {megabytes:6.1f} MB   "
            f"{megabytes / seconds:4.0f} MB/s")


def largest_difference(weights, others):
    return max(float(numpy.abs(weights[name] - others[name]).max()) for name in weights)


def verdict(passed):
    return "ok" if passed else "FAILED"


def run_part(function, make_optimizer, options):
    """True if the workers agree with each other, with training alone, and have learned."""
    table = Table()
    weights = ranks.run(function, options.workers, options.epochs, options.box, table.add)
    started = time.monotonic()
    expected, alone = training.alone(make_optimizer, options.workers, options.epochs)
    say(f"   the same batches in one process, without a box: {alone:.1%}, "
        f"{time.monotonic() - started:.1f} s")

    among = max(largest_difference(mine, weights[0]) for mine in weights)
    apart = largest_difference(weights[0], expected)
    say(f"   largest difference between workers:             {among:.1e} (allowed: 0)  "
        f"{verdict(among == 0)}")
    # Not the other way round: a difference that is no number has to fail.
    agrees = apart <= DIFFERENCE_MAX
    say(f"   largest difference from the one process:        {apart:.1e} "
        f"(allowed: {DIFFERENCE_MAX:.0e})  {verdict(agrees)}")
    learned = table.accuracy >= ACCURACY_MIN
    say(f"   accuracy on images not trained on:              {table.accuracy:.1%} "
        f"(at least {ACCURACY_MIN:.0%})  {verdict(learned)}")
    return among == 0 and agrees and learned


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--box", required=True, help="control address of the box, host:port")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    return parser.parse_args(arguments)


def main(arguments):
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    torch.set_num_threads(1)
    passed = []
    for title, function, make_optimizer in PARTS:
        say(f"\n{len(passed) + 1}. {title}")
        try:
            passed.append(run_part(function, make_optimizer, options))
        except ranks.RankFailed as failure:
            say(f"   {failure}")
            return 1
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

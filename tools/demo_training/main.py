"""Trains for tools/demo with the box and without it, and checks that the weights are the same."""

import argparse
import signal
import sys
import time

import numpy
import torch

import ranks
import training

ACCURACY_MIN = 0.95
# Largest allowed difference of a weight. Sums in a different order differ in the last bit of a
# float, and training amplifies that. digits.py avoids ReLU and max pooling, whose kinks amplify it
# most.
DIFFERENCE_MAX = 1e-4

PARTS = (
    ("The box averages the gradients: pbox.torch.DDPCommHook; SGD with momentum in each worker",
     training.averaged_by_the_box, training.sgd),
    ("The box runs the optimizer: pbox.torch.DistributedOptimizer; Adam on the box",
     training.optimized_by_the_box, training.adam))
SHARDED = (
    ("Each worker has a part of the model: FSDP2, process group \"pbox\"; SGD with momentum",
     training.sharded_over_the_box, training.sgd),)


def say(text=""):
    print(text, flush=True)


def percent(share):
    return f"{100 * share:.1f} %"


class Table:
    """Prints a line for each epoch. The rate counts the bytes of all workers, both ways, over the
    whole time of the epoch, computing included."""

    def __init__(self):
        self.epoch = 0
        self.accuracy = 0.0
        say("   epoch     loss   accuracy    exchanged        rate")

    def add(self, reports):
        self.epoch += 1
        self.accuracy = reports[0]["accuracy"]
        megabytes = sum(report["exchanged"] for report in reports) / 1e6
        seconds = max(report["seconds"] for report in reports)
        loss = sum(report["loss"] for report in reports) / len(reports)
        say(f"   {self.epoch:5d}  {loss:7.4f}   {percent(self.accuracy):>8}   "
            f"{megabytes:7.1f} MB   {megabytes / seconds:4.0f} MB/s")


def largest_difference(weights, others):
    return max(float(numpy.abs(weights[name] - others[name]).max()) for name in weights)


def check(what, value, bound, passed):
    """Prints one line of the verdict and returns `passed`."""
    say(f"   {what:<42} {value:>8}   {bound:<16} {'ok' if passed else 'FAILED'}")
    return passed


def run_part(function, make_optimizer, options):
    """Trains, and returns whether all workers end with the same weights, these are close to those
    of training alone, and the accuracy is high enough."""
    table = Table()
    weights = ranks.run(function, options.workers, options.epochs, options.box, table.add)
    started = time.monotonic()
    say("   now the same batches in one process, without a box ...")
    expected, alone = training.alone(make_optimizer, options.workers, options.epochs)
    say(f"   ... {percent(alone)}, {time.monotonic() - started:.1f} s")
    say()

    among = max(largest_difference(mine, weights[0]) for mine in weights)
    apart = largest_difference(weights[0], expected)
    # Each comparison is written so that it is false for NaN.
    return all([
        check("largest difference between the workers", f"{among:.1e}", "must be 0", among == 0),
        check("largest difference from training alone", f"{apart:.1e}",
              f"at most {DIFFERENCE_MAX:.0e}", apart <= DIFFERENCE_MAX),
        check("test images recognised", percent(table.accuracy),
              f"at least {percent(ACCURACY_MIN)}", table.accuracy >= ACCURACY_MIN)])


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--box", required=True, help="control address of the box, HOST:PORT")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--sharded", action="store_true",
                        help="also train a sharded model; needs torch 2")
    return parser.parse_args(arguments)


def main(arguments):
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    torch.set_num_threads(1)
    passed = []
    for title, function, make_optimizer in PARTS + (SHARDED if options.sharded else ()):
        say(f"\n{len(passed) + 1}. {title}")
        try:
            passed.append(run_part(function, make_optimizer, options))
        except ranks.RankFailed as failure:
            say(f"   {failure}")
            return 1
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

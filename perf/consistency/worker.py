"""One rank of a measured run: trains until a deadline, and prints its figures as one line of JSON.
run.py starts it and writes the settings to its standard input as one line of JSON:

    rank, world_size, box, admin, job, problem, folder, client (options of pbox.Client),
    compute_ms (duration of an iteration's computing), slow_rank, slow_factor, seconds, snapshots
"""

import json
import sys
import time
import urllib.request

import documents
import numpy

import pbox

LEAVE_TIMEOUT_MS = 30_000


class Rank:
    def __init__(self, settings):
        self.settings = settings
        self.rank = settings["rank"]
        self.problem = documents.PROBLEMS[settings["problem"]](
            self.rank, settings["world_size"], settings["folder"])
        self.weights = self.problem.arrays()
        self.gradients = [numpy.empty_like(array) for array in self.weights]
        self.client = pbox.Client(
            mode="optimize", reduction="mean", box=settings["box"], job=settings["job"],
            rank=self.rank, world_size=settings["world_size"], recovery="none",
            **settings["client"])
        self.tensors = [self.client.register(name, array, priority=len(self.weights) - index)
                        for index, (name, array) in enumerate(zip(self.problem.names,
                                                                  self.weights))]
        self.client.set_optimizer("sgd", self.problem.LEARNING_RATE)
        self.snapshots = []

    def join(self):
        self.client.join()
        for tensor, array in zip(self.tensors, self.weights):
            self.client.init_weights(tensor, array)
        self.client.wait_all()
        self.client.barrier()

    def train(self):
        """Trains until the deadline. Returns the number of completed iterations."""
        settings = self.settings
        compute_s = settings["compute_ms"] / 1000
        if self.rank == settings["slow_rank"]:
            compute_s *= settings["slow_factor"]
        start = time.monotonic()
        deadline = start + settings["seconds"]
        iterations = 0
        keeps = iter(numpy.linspace(0, settings["seconds"], settings["snapshots"] + 1)[1:])
        next_snapshot = next(keeps, None) if self.rank == 0 else None
        while True:
            begun = time.monotonic()
            gradients = self.problem.gradient(self.weights, iterations)
            for target, gradient in zip(self.gradients, gradients):
                target[...] = gradient
            # Sleeps for the rest of the computing: 2 cores cannot compute for 8 workers at once.
            time.sleep(max(0.0, min(begun + compute_s, deadline) - time.monotonic()))
            if time.monotonic() >= deadline:
                return iterations
            for tensor, gradient, array in zip(reversed(self.tensors), reversed(self.gradients),
                                               reversed(self.weights)):
                self.client.push_pull(tensor, gradient, array)
            if not self._await_all(deadline):
                return iterations
            iterations += 1
            elapsed = time.monotonic() - start
            while next_snapshot is not None and elapsed >= next_snapshot:
                if not self.snapshots or self.snapshots[-1][1] != iterations:
                    self.snapshots.append((elapsed, iterations,
                                           [array.copy() for array in self.weights]))
                next_snapshot = next(keeps, None)

    def _await_all(self, deadline):
        """Waits for all tensors. Returns False if the deadline comes first."""
        for tensor in self.tensors:
            while True:
                left_ms = int((deadline - time.monotonic()) * 1000)
                if left_ms <= 0:
                    return False
                try:
                    self.client.wait(tensor, left_ms)
                    break
                except pbox.Timeout:
                    continue
        return True

    def curve(self):
        """Returns a list of [seconds, iterations of this rank, accuracy]."""
        return [[elapsed, iterations, self.problem.accuracy(weights)]
                for elapsed, iterations, weights in self.snapshots]

    def job_on_box(self):
        with urllib.request.urlopen(f"http://{self.settings['admin']}/api/v1/jobs") as answer:
            return json.load(answer)


def main():
    rank = Rank(json.loads(sys.stdin.readline()))
    rank.join()
    iterations = rank.train()
    statistics = rank.client.statistics()
    rank.client.barrier(LEAVE_TIMEOUT_MS)
    report = {"rank": rank.rank, "iterations": iterations, "statistics": statistics}
    if rank.rank == 0:
        report["box"] = rank.job_on_box()
    rank.client.barrier(LEAVE_TIMEOUT_MS)
    rank.client.close()
    if rank.rank == 0:
        report["curve"] = rank.curve()
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()

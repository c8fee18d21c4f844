"""A rank that trains with an exchange in each step, or with DiLoCo, over a box or over torchft.
Computing is waiting for the clock. `pbox-perf diloco` runs this script on each worker of a shaped
rack. It prints a line when it is ready, waits for one, trains, prints one JSON object, and waits
for another line before it ends, because all ranks must have trained by then."""

import argparse
import datetime
import json
import os
import pathlib
import time

import torch
from ranks import cpu_seconds, use_tree

use_tree()
import pbox.torch


class Computing(torch.optim.Optimizer):
    """An optimizer whose step takes as long as forward, backward and step of a model would. It
    changes every weight, so that no fragment of a change is zero."""

    def __init__(self, parameters, step_s):
        super().__init__(parameters, {})
        self._step_s = step_s

    @torch.no_grad()
    def step(self, closure=None):
        end = time.monotonic() + self._step_s
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(1e-4)
        time.sleep(max(0.0, end - time.monotonic()))


class Diloco:
    """Steps of a model over DiLoCo."""

    def __init__(self, arguments, model):
        self._inner = Computing(model.parameters(), arguments.step_ms / 1000)
        self._outer = pbox.torch.DiLoCo(
            model, self._inner, sync_every=arguments.sync_every, fragments=arguments.fragments,
            delay=arguments.delay, alpha=0.5, wire=arguments.wire, box=arguments.box,
            job=arguments.job, rank=arguments.rank, world_size=arguments.workers)
        self._client = self._outer.client

    def step(self):
        self._inner.step()

    def close(self):
        self._client.barrier()
        self._client.close()


class TorchftDiloco:
    """Steps of a model over torchft's DiLoCo, whose all-reduce is Gloo's. Rank 0 has the
    Lighthouse. torchft compresses on GPUs only, so the changes are f32."""

    LIGHTHOUSE_PORT = 29510
    TIMEOUT = datetime.timedelta(minutes=5)

    def __init__(self, arguments, model):
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
        import torchft
        import torchft.coordination
        import torchft.local_sgd
        if arguments.rank == 0:
            self._lighthouse = torchft.coordination.LighthouseServer(
                bind=f"[::]:{self.LIGHTHOUSE_PORT}", min_replicas=arguments.workers,
                join_timeout_ms=60_000)
        self._store = torch.distributed.TCPStore(arguments.address, 0, is_master=True,
                                                 wait_for_workers=False)
        self._manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(timeout=self.TIMEOUT), load_state_dict=lambda state: None,
            state_dict=dict, min_replica_size=arguments.workers, use_async_quorum=False,
            timeout=self.TIMEOUT, quorum_timeout=self.TIMEOUT, rank=0, world_size=1,
            store_addr=arguments.address, store_port=self._store.port,
            lighthouse_addr=f"http://{arguments.first}:{self.LIGHTHOUSE_PORT}",
            replica_id=f"rank{arguments.rank}", hostname=arguments.address, init_sync=False)
        layers = len(model) // arguments.fragments
        parts = [model[first:first + layers] for first in range(0, len(model), layers)]
        self._inner = Computing(model.parameters(), arguments.step_ms / 1000)
        self._outer = torchft.local_sgd.DiLoCo(
            self._manager, parts, self._inner,
            [torch.optim.SGD(part.parameters(), lr=0.7, momentum=0.9, nesterov=True)
             for part in parts],
            sync_every=arguments.sync_every, fragment_sync_delay=arguments.delay,
            fragment_update_alpha=0.5)
        self._outer.__enter__()
        self._expected_steps = ((arguments.warmup + arguments.steps) * arguments.fragments //
                                arguments.sync_every)

    def step(self):
        self._inner.step()

    def close(self):
        if self._manager.current_step() != self._expected_steps:
            raise AssertionError(f"torchft has made {self._manager.current_step()} outer steps, "
                                 f"and not {self._expected_steps}")
        self._manager.shutdown(wait=False)


class EachStep:
    """Steps of a model whose gradients are averaged in each step, or whose optimizer the box runs.
    A layer's exchange begins when backward, two thirds of the time, has computed its gradient."""

    def __init__(self, arguments, model):
        self._step_s = arguments.step_ms / 1000
        self._weights = [parameter.detach() for parameter in model.parameters()]
        self._gradients = [torch.full_like(weights, 1.0 + arguments.rank)
                           for weights in self._weights]
        self._client = pbox.Client(mode=arguments.mode, box=arguments.box, job=arguments.job,
                                  rank=arguments.rank, world_size=arguments.workers,
                                  compression="none" if arguments.wire == "f32" else arguments.wire)
        self._tensors = [self._client.register(str(index), gradient)
                         for index, gradient in enumerate(self._gradients)]
        if arguments.mode == "optimize":
            self._client.set_optimizer("sgd", 1e-3)
        self._client.join()
        if arguments.mode == "aggregate":
            self._weights = self._gradients  # results replace the gradients
            return
        for tensor, weights in zip(self._tensors, self._weights):
            self._client.init_weights(tensor, weights)
        self._client.wait_all()

    def step(self):
        begin = time.monotonic()
        forward_s = self._step_s / 3
        time.sleep(forward_s)
        layers = list(zip(self._tensors, self._gradients, self._weights))
        for number, (tensor, gradient, weights) in enumerate(reversed(layers), 1):
            due = begin + forward_s + 2 * forward_s * number / len(layers)
            time.sleep(max(0.0, due - time.monotonic()))
            self._client.push_pull(tensor, gradient, weights)
        for tensor in self._tensors:
            self._client.wait(tensor)

    def close(self):
        self._client.barrier()
        self._client.close()


def network_bytes():
    """Returns how many bytes this host has sent and received on its cable, with all headers."""
    counters = pathlib.Path("/proc/net/dev").read_text(encoding="ascii").splitlines()
    cable = next(line for line in counters if line.strip().startswith("eth0:"))
    numbers = cable.partition(":")[2].split()
    return int(numbers[0]) + int(numbers[8])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", default="pbox", choices=("pbox", "torchft"),
                        help="whose DiLoCo")
    parser.add_argument("--box", required=True, help="HOST:PORT of the box")
    parser.add_argument("--address", required=True, help="address of this rank")
    parser.add_argument("--first", required=True, help="address of rank 0")
    parser.add_argument("--job", required=True, help="name of the job")
    parser.add_argument("--rank", type=int, required=True, help="number of this rank")
    parser.add_argument("--workers", type=int, required=True, help="number of ranks")
    parser.add_argument("--mode", default="aggregate",
                        help="aggregate or optimize; DiLoCo always uses optimize")
    parser.add_argument("--wire", default="f32", help="f32, q8 or q4")
    parser.add_argument("--sync-every", type=int, default=0,
                        help="steps between two exchanges of DiLoCo; 0: exchange in each step")
    parser.add_argument("--fragments", type=int, default=1, help="number of DiLoCo's fragments")
    parser.add_argument("--delay", type=int, default=0, help="steps of DiLoCo's delay")
    parser.add_argument("--steps", type=int, required=True, help="number of timed steps")
    parser.add_argument("--warmup", type=int, required=True,
                        help="number of untimed steps before the timed ones")
    parser.add_argument("--step-ms", type=float, required=True, help="time of computing a step")
    parser.add_argument("--layers", type=int, default=24, help="number of layers")
    parser.add_argument("--width", type=int, default=1032, help="rows and columns of a layer")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(arguments.width, arguments.width, bias=False)
                                  for _ in range(arguments.layers)))
    system = (TorchftDiloco if arguments.system == "torchft"
              else Diloco if arguments.sync_every > 0 else EachStep)
    training = system(arguments, model)
    for _ in range(arguments.warmup):
        training.step()
    print("ready", flush=True)
    input()
    before, cpu_before, begin = network_bytes(), cpu_seconds(), time.monotonic()
    for _ in range(arguments.steps):
        training.step()
    elapsed_s = time.monotonic() - begin
    print(json.dumps({"elapsed_s": elapsed_s, "cpu_s": cpu_seconds() - cpu_before,
                      "bytes": network_bytes() - before}), flush=True)
    input()
    training.close()


if __name__ == "__main__":
    main()

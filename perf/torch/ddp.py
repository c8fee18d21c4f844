"""How long a step of DistributedDataParallel takes with large buckets: over the backend pbox, by
the hook of pbox.torch.attach(), and over Gloo. `pbox-perf ddp` runs this script. Progress goes to
standard error, one JSON object to standard output."""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from ranks import Ranks, cpu_seconds, median_ratio, process_cpu_seconds, use_tree
from torch.nn.parallel import DistributedDataParallel

use_tree()
import pbox.torch

# The backend of the process group, whether the hook is attached, and the environment.
SYSTEMS = {
    "gloo": ("gloo", False, {}),
    "pbox": ("pbox", False, {}),
    "pbox_none": ("pbox", False, {"PBOX_RECOVERY": "none"}),
    "hook": ("gloo", True, {}),
    "hook_none": ("gloo", True, {"PBOX_RECOVERY": "none"}),
}


def make_model(layers, width):
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False)
                                 for _ in range(layers)))


def prepare_steps(system, arguments, store):
    """Returns the `prepare` of Ranks whose turn is one step of training."""
    backend, has_hook, environment = SYSTEMS[system]

    def prepare(rank):
        torch.set_num_threads(1)
        os.environ.update(environment, PBOX_JOB=system)
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank,
                                world_size=arguments.workers)
        model = DistributedDataParallel(make_model(arguments.layers, arguments.width))
        if has_hook:
            pbox.torch.attach(model)
        inputs = torch.full((1, arguments.width), 1.0 + rank)

        def step():
            cpu = cpu_seconds()
            model.zero_grad()
            model(inputs).sum().backward()
            return {"end": time.monotonic(), "cpu_s": cpu_seconds() - cpu}

        for _ in range(3):  # DDP makes its buckets anew after the first
            step()
        return step

    return prepare


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2, help="number of ranks")
    parser.add_argument("--layers", type=int, default=25, help="number of layers")
    parser.add_argument("--width", type=int, default=1024, help="rows and columns of a layer")
    parser.add_argument("--turns", type=int, default=21, help="steps of each system")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="comma-separated")
    arguments = parser.parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    names = arguments.systems.split(",")
    if "gloo" not in names:
        parser.error("--systems must include gloo, because the other systems are compared with it")
    runs = {name: [] for name in names}
    with pbox.LocalBox() as box, tempfile.TemporaryDirectory(prefix="pbox-ddp-") as folder:
        os.environ["PBOX_BOX"] = box.control
        systems = {name: Ranks(arguments.workers,
                               prepare_steps(name, arguments, f"{folder}/{name}"))
                   for name in names}
        for turn in range(arguments.turns):
            for name in names[turn % len(names):] + names[:turn % len(names)]:
                box_cpu = process_cpu_seconds(box.process.pid)
                results, start = systems[name].turn()
                box_cpu = process_cpu_seconds(box.process.pid) - box_cpu
                runs[name].append({
                    "ms": 1000 * (max(result["end"] for result in results) - start),
                    "cpu_s": sum(result["cpu_s"] for result in results) + box_cpu})
            print(f"turn {turn}, ms:", *(f"{name} {runs[name][-1]['ms']:.0f}" for name in names),
                  file=sys.stderr)
        for ranks in systems.values():
            ranks.close()
    figures = [{"system": name, "ranks": arguments.workers,
                **{key: statistics.median(run[key] for run in runs[name])
                   for key in ("ms", "cpu_s")},
                "over_gloo": median_ratio(runs[name], runs["gloo"])} for name in names]
    print(json.dumps({"torch": torch.__version__, "turns": arguments.turns, "runs": figures}))


if __name__ == "__main__":
    main()

"""How long ranks take from init_process_group to the end of a first all_reduce, over the backend
pbox and over Gloo. `pbox-perf start` runs this script. Progress goes to standard error, one JSON
object to standard output."""

import argparse
import datetime
import json
import os
import resource
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
from ranks import Ranks, cpu_seconds, median_ratio, process_cpu_seconds, use_tree

use_tree()
import pbox.torch

TIMEOUT = datetime.timedelta(minutes=5)
FILES_MAX = 65536  # the box has a socket for each rank


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def prepare_start(backend, world_size, port):
    """Returns the `prepare` of Ranks whose one turn starts a group."""
    def prepare(rank):
        def run():
            cpu = cpu_seconds()
            dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                                    world_size=world_size, timeout=TIMEOUT)
            joined = time.monotonic()
            total = torch.full((1000,), float(rank + 1))
            dist.all_reduce(total)
            end = time.monotonic()
            if not torch.equal(total, torch.full((1000,), world_size * (world_size + 1) / 2)):
                raise AssertionError(f"rank {rank}: the sum is {total[0]}")
            return {"joined": joined, "end": end, "cpu_s": cpu_seconds() - cpu}

        return run

    return prepare


def start_once(backend, world_size, box):
    """Starts a group of new processes. Returns its figures."""
    ranks = Ranks(world_size, prepare_start(backend, world_size, free_port()))
    box_cpu = process_cpu_seconds(box.process.pid)
    results, start = ranks.turn()
    box_cpu = process_cpu_seconds(box.process.pid) - box_cpu
    ranks.close()
    return {"joined_ms": 1000 * (max(result["joined"] for result in results) - start),
            "ms": 1000 * (max(result["end"] for result in results) - start),
            "cpu_s": sum(result["cpu_s"] for result in results) +
            (box_cpu if backend == "pbox" else 0)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", default="2,64", help="numbers of ranks, comma-separated")
    parser.add_argument("--turns", type=int, default=5, help="starts of each system")
    arguments = parser.parse_args()
    worlds = [int(word) for word in arguments.worlds.split(",")]
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, FILES_MAX), limit))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    systems = [(backend, world) for world in worlds for backend in ("pbox", "gloo")]
    runs = {system: [] for system in systems}
    with pbox.LocalBox() as box:
        os.environ["PBOX_BOX"] = box.control
        for turn in range(arguments.turns):
            for backend, world in systems[turn % len(systems):] + systems[:turn % len(systems)]:
                run = start_once(backend, world, box)
                runs[backend, world].append(run)
                print(f"turn {turn}: {backend}, {world} ranks: {run['ms']:.0f} ms, "
                      f"{run['cpu_s']:.2f} s of CPU", file=sys.stderr)
    figures = [{"system": backend, "ranks": world,
                **{name: statistics.median(run[name] for run in runs[backend, world])
                   for name in ("joined_ms", "ms", "cpu_s")},
                "over_gloo": median_ratio(runs[backend, world], runs["gloo", world]),
                "over_few": median_ratio(runs[backend, world], runs[backend, worlds[0]])}
               for backend, world in systems]
    print(json.dumps({"torch": torch.__version__, "turns": arguments.turns, "runs": figures}))


if __name__ == "__main__":
    main()

"""Trains real problems under each consistency model, with one slowed rank. `pbox-perf consistency`
runs this script. Progress goes to standard error, one JSON object to standard output."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import documents

FOLDER = pathlib.Path(__file__).parent
READY_SECONDS = 120

# Options of pbox.Client by name. The first model is the baseline, which works as earlier parameter
# servers did: whole tensors, first come first served, notify and pull. All ratios are to the
# baseline or to raw SSP.
MODELS = {
    "bsp_pull": {"sync": "bsp", "delivery": "pull", "priority_policy": "fifo"},
    "bsp": {"sync": "bsp"},
    "asp": {"sync": "asp"},
    "ssp": {"sync": "ssp", "staleness": 3},
    "ssp_cached": {"sync": "ssp", "staleness": 3, "reads": "cached"},
    "essp": {"sync": "essp", "staleness": 3},
    "pssp": {"sync": "pssp", "staleness": 3, "sync_probability": 0.01},
    "pssp_lazy": {"sync": "pssp", "staleness": 3, "sync_probability": 0.01, "release": "lazy"},
    "dpssp_lazy": {"sync": "dpssp", "staleness": 3, "sync_probability": 0.02, "release": "lazy"},
    "drop": {"sync": "drop"},
}


def settings_of(name, workers, staleness):
    options = dict(MODELS[name])
    if "staleness" in options:
        options["staleness"] = staleness
    if name == "drop":
        options["quorum"] = workers - 1
    return options


def train(arguments, folder, box, name, workers, slow, staleness):
    """Runs one training. Returns the reports of all ranks, rank 0 first."""
    processes = []
    try:
        for rank in range(workers):
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            processes.append(subprocess.Popen(
                [sys.executable, str(FOLDER / "worker.py")], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, text=True, env=environment))
            settings = {"rank": rank, "world_size": workers, "box": box.control,
                        "admin": box.admin, "job": name, "problem": arguments.problem,
                        "folder": folder, "client": settings_of(name, workers, staleness),
                        "compute_ms": arguments.compute_ms, "slow_rank": workers - 1,
                        "slow_factor": slow, "seconds": arguments.seconds,
                        "snapshots": arguments.snapshots}
            processes[-1].stdin.write(json.dumps(settings) + "\n")
            processes[-1].stdin.close()
        reports = []
        for process in processes:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"{name}: a rank ended with status {process.wait()} and without "
                                   "a report")
            reports.append(json.loads(line))
        return reports
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()


def packets_of(reports, name):
    return sum(report["statistics"][name] for report in reports)


def figures_of(arguments, reports, workers):
    """Returns the figures of one run. Synchronisation traffic is all traffic except gradients and
    weights: probes, pulls, acknowledgements and notifications."""
    iterations = sum(report["iterations"] for report in reports)
    fragment = reports[0]["statistics"]["fragment_bytes"]
    pushed, pulled = packets_of(reports, "bytes_pushed"), packets_of(reports, "bytes_pulled")
    reads = packets_of(reports, "reads")
    mean = packets_of(reports, "staleness_sum") / max(reads, 1)
    pulls = reports[0]["box"]["jobs"][0]["sync"]
    curve = reports[0]["curve"]
    last = [accuracy for _, _, accuracy in curve[-3:]]
    packets = (packets_of(reports, "packets_sent") + packets_of(reports, "packets_received") -
               packets_of(reports, "retransmitted_fragments"))
    return {
        "iterations": iterations,
        "iterations_per_second": iterations / workers / arguments.seconds,
        "fastest_iterations": max(report["iterations"] for report in reports),
        "slowest_iterations": min(report["iterations"] for report in reports),
        "payload_bytes_per_iteration": (pushed + pulled) / max(iterations, 1),
        "sync_packets_per_iteration":
            max(0.0, packets - (pushed + pulled) / fragment) / max(iterations, 1),
        "pulls": pulls.get("pulls", 0),
        "pulls_delayed": pulls.get("pulls_delayed", 0),
        "pulls_delayed_per_iteration": pulls.get("pulls_delayed", 0) / max(iterations, 1),
        "parked_seconds": pulls.get("parked_seconds", 0),
        "dropped_rounds": packets_of(reports, "dropped_rounds"),
        "staleness": {"mean": mean,
                      "variance": packets_of(reports, "staleness_square_sum") / max(reads, 1) -
                      mean * mean,
                      "reads": reads,
                      "histogram": [sum(report["statistics"]["reads_by_staleness"][index]
                                        for report in reports) for index in range(16)]},
        "curve": curve,
        "final_accuracy": statistics.median(last) if last else 0.0,
    }


def seconds_to(curve, target):
    """Returns the time at which the accuracy is first reached, or None."""
    return next((elapsed for elapsed, _, accuracy in curve if accuracy >= target), None)


def ratio(numerator, denominator):
    return numerator / denominator if denominator else None


def compare(runs):
    """Returns the ratios of each group of runs with equal workers, slowness and staleness bound,
    and adds `seconds_to_target` to the runs. The baseline has no staleness bound, so it serves all
    groups of its workers and slowness."""
    groups = {}
    for run in runs:
        groups.setdefault((run["workers"], run["slow"], run["staleness_bound"]),
                          {})[run["model"]] = run
    baselines = {(run["workers"], run["slow"]): run for run in runs if run["model"] == "bsp_pull"}
    points = []
    for (workers, slow, bound), by_model in groups.items():
        point = {"workers": workers, "slow": slow, "staleness_bound": bound}
        base = baselines.get((workers, slow))
        raw, soft, lazy = (by_model.get(name) for name in ("ssp", "pssp", "pssp_lazy"))
        if base:
            target = base["final_accuracy"] - 0.005
            point["target_accuracy"] = target
            for run in by_model.values():
                run["seconds_to_target"] = seconds_to(run["curve"], target)
        if raw and lazy:
            point["delayed_pull_ratio"] = ratio(raw["pulls_delayed_per_iteration"],
                                                lazy["pulls_delayed_per_iteration"])
        if base and lazy:
            point["iteration_rate_ratio_lazy"] = ratio(lazy["iterations_per_second"],
                                                       base["iterations_per_second"])
        if base and soft:
            point["iteration_rate_ratio"] = ratio(soft["iterations_per_second"],
                                                  base["iterations_per_second"])
            point["sync_traffic_saved"] = 1 - (ratio(soft["sync_packets_per_iteration"],
                                                     base["sync_packets_per_iteration"]) or 0)
            point["accuracy_difference"] = soft["final_accuracy"] - base["final_accuracy"]
        points.append(point)
    return points


def numbers(text):
    return [float(word) for word in text.split(",")]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problem", choices=sorted(documents.PROBLEMS), default="words")
    parser.add_argument("--models", default=",".join(MODELS),
                        help="models to measure, of: " + ", ".join(MODELS))
    parser.add_argument("--workers", type=numbers, default=[4, 8],
                        help="numbers of worker processes, such as 4,8")
    parser.add_argument("--slow", type=numbers, default=[10],
                        help="factors by which the last rank computes more slowly, such as 2,5,10")
    parser.add_argument("--staleness", type=numbers, default=[3],
                        help="staleness bounds, such as 1,3,5")
    parser.add_argument("--seconds", type=float, default=20, help="seconds of training in each run")
    parser.add_argument("--compute-ms", type=float, default=25,
                        help="milliseconds that a rank at full speed computes in each iteration")
    parser.add_argument("--snapshots", type=int, default=40,
                        help="number of points of each accuracy curve")
    arguments = parser.parse_args()
    arguments.models = arguments.models.split(",")
    unknown = set(arguments.models) - set(MODELS)
    if unknown:
        parser.error(f"unknown models {', '.join(sorted(unknown))}; use {', '.join(MODELS)}")
    return arguments


def main():
    arguments = parse_arguments()
    sys.path.insert(0, str(FOLDER.parents[1] / "worker" / "python"))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [sys.path[0], *filter(None, [os.environ.get("PYTHONPATH")])])
    import pbox

    runs = []
    with tempfile.TemporaryDirectory(prefix="pbox-consistency-") as folder:
        documents.PROBLEMS[arguments.problem].prepare(folder)
        plan = [(int(workers), slow, int(staleness), name)
                for workers in arguments.workers for slow in arguments.slow
                for staleness in arguments.staleness for name in arguments.models
                if staleness == arguments.staleness[0] or "staleness" in MODELS[name]]
        for done, (workers, slow, staleness, name) in enumerate(plan):
            print(f"\r  {done}/{len(plan)}: {name}, {workers} workers, one {slow:g} times slower  ",
                  end="", file=sys.stderr, flush=True)
            with pbox.LocalBox() as box:
                reports = train(arguments, folder, box, name, workers, slow, staleness)
            runs.append({"model": name, "workers": workers, "slow": slow,
                         "staleness_bound": staleness,
                         **figures_of(arguments, reports, workers)})
    print("\r" + " " * 78 + "\r", end="", file=sys.stderr)
    points = compare(runs)
    print(json.dumps({"problem": arguments.problem, "seconds": arguments.seconds,
                      "compute_ms": arguments.compute_ms, "points": points, "runs": runs}))


if __name__ == "__main__":
    main()

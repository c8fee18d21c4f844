#!/usr/bin/python3
"""Plots of what `pbox-perf consistency --json` printed: accuracy against time, staleness at read.

  perf/consistency/plot.py FOLDER RESULT.json...

Needs matplotlib (python3-matplotlib).
"""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402: the backend is chosen first

SIZE_INCHES = (6.4, 3.8)


def last_json(path):
    return json.loads(pathlib.Path(path).read_text(encoding="utf-8").strip().split("\n")[-1])


def headline(result):
    """The runs with the most workers, the slowest straggler and the first bound."""
    runs = result["runs"]
    workers = max(run["workers"] for run in runs)
    slow = max(run["slow"] for run in runs)
    bound = runs[0]["staleness_bound"]
    return [run for run in runs
            if (run["workers"], run["slow"], run["staleness_bound"]) == (workers, slow, bound)]


def save(figure, folder, name):
    path = pathlib.Path(folder, name)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)
    print(path)


def plot_accuracy(result, folder):
    figure, axes = plt.subplots(figsize=SIZE_INCHES)
    runs = headline(result)
    for run in runs:
        axes.plot([point[0] for point in run["curve"]], [point[2] for point in run["curve"]],
                  label=run["model"], linewidth=1)
    axes.set_xlabel(f"seconds; {runs[0]['workers']} workers, one {runs[0]['slow']:g} times slower")
    axes.set_ylabel("accuracy on what nobody trained on")
    axes.set_title(result["problem"])
    axes.legend(fontsize="small", ncol=2)
    save(figure, folder, f"accuracy_{result['problem']}.png")


def plot_staleness(result, folder):
    runs = [run for run in result["runs"] if run["model"] in ("ssp_cached", "essp")]
    if not runs:
        return
    figure, axes = plt.subplots(figsize=SIZE_INCHES)
    workers = max(run["workers"] for run in runs)
    for run in runs:
        if run["workers"] != workers or run["slow"] != max(each["slow"] for each in runs):
            continue
        histogram = run["staleness"]["histogram"]
        total = max(sum(histogram), 1)
        axes.plot([-index for index in range(len(histogram))],
                  [count / total for count in histogram],
                  "o-" if run["model"] == "essp" else "s--", markersize=3, linewidth=1,
                  label=f"{run['model']}, s = {run['staleness_bound']}")
    axes.set_xlabel("staleness at read: clock of the data minus clock of the reader")
    axes.set_ylabel("share of reads")
    axes.set_title(result["problem"])
    axes.legend(fontsize="small")
    save(figure, folder, f"staleness_{result['problem']}.png")


def main(arguments):
    if len(arguments) < 2:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    folder = pathlib.Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for path in arguments[1:]:
        result = last_json(path)
        plot_accuracy(result, folder)
        plot_staleness(result, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

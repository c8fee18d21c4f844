#!/usr/bin/python3
"""Plots the output of `pbox-perf consistency --json`: accuracy over time, and staleness at read.

  perf/consistency/plot.py FOLDER RESULT.json...

Needs matplotlib (python3-matplotlib).
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from plots import folder_and_results, new_figure, save  # noqa: E402: from the folder above


def headline(result):
    """Returns the runs with the most workers, the slowest straggler and the first bound."""
    runs = result["runs"]
    workers = max(run["workers"] for run in runs)
    slow = max(run["slow"] for run in runs)
    bound = runs[0]["staleness_bound"]
    return [run for run in runs
            if (run["workers"], run["slow"], run["staleness_bound"]) == (workers, slow, bound)]


def plot_accuracy(result, folder):
    figure, axes = new_figure()
    runs = headline(result)
    for run in runs:
        axes.plot([point[0] for point in run["curve"]], [point[2] for point in run["curve"]],
                  label=run["model"], linewidth=1)
    axes.set_xlabel(f"seconds; {runs[0]['workers']} workers, one {runs[0]['slow']:g} times slower")
    axes.set_ylabel("accuracy on the test data")
    axes.set_title(result["problem"])
    axes.legend(fontsize="small", ncol=2)
    save(figure, folder, f"accuracy_{result['problem']}.png")


def plot_staleness(result, folder):
    runs = [run for run in result["runs"] if run["model"] in ("ssp_cached", "essp")]
    if not runs:
        return
    figure, axes = new_figure()
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


def main():
    folder, results = folder_and_results(__doc__)
    for result in results:
        plot_accuracy(result, folder)
        plot_staleness(result, folder)


if __name__ == "__main__":
    main()

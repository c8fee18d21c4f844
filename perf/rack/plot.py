#!/usr/bin/python3
"""Plots the results of pbox-perf on a rack from the JSON that it prints.

  perf/rack/plot.py FOLDER RESULT.json...    one PNG per p3 result, one PNG for all rack results,
                                             one for all compress results

Needs matplotlib (python3-matplotlib).
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from plots import folder_and_results, new_figure, save  # noqa: E402: in the parent folder

VARIANTS = {"p3": ("slices and priorities (P3)", "o-"),
            "slicing": ("slices only", "s--"),
            "priority": ("priorities only", "^--")}
# Best speedup of each model in the paper's own setting (Jayarajan et al., MLSys 2019, abstract).
PAPER_BEST = {"resnet50": 1.25, "vgg19": 1.66, "sockeye": 1.38}
FORMS = ("f32", "bf16", "q8", "q4", "auto")
SYSTEMS = {"pbox": "PBox", "gloo_tcp": "Gloo (ring)", "openmpi_tcp": "Open MPI"}


def plot_p3(result, folder):
    figure, axes = new_figure()
    ratios = [point["communication_over_computation"] for point in result["points"]]
    for variant, (label, style) in VARIANTS.items():
        axes.plot(ratios, [point["speedup"][variant] for point in result["points"]], style,
                  label=label)
    if result["model"] in PAPER_BEST:
        best = PAPER_BEST[result["model"]]
        axes.axhline(best, color="grey", linestyle=":", label=f"paper's best: {best}")
    axes.axhline(1, color="black", linewidth=0.5)
    axes.set_xlabel("M/B over the time of computing (a slower network to the right)")
    axes.set_ylabel("times as fast as the baseline")
    axes.set_title(f"{result['model']}, {result['workers']} workers")
    axes.legend()
    save(figure, folder, f"p3_{result['model']}.png")


def plot_rack(results, folder):
    figure, axes = new_figure()
    results = sorted(results, key=lambda result: result["workers"])
    workers = [result["workers"] for result in results]
    for system, label in SYSTEMS.items():
        if all(system in result["systems"] for result in results):
            axes.plot(workers, [r["systems"][system]["over_limit"] for r in results], "o-",
                      label=label)
    axes.plot(workers, [2 * (count - 1) / count for count in workers], ":", color="grey",
              label="the least a ring can take: 2 (W - 1) / W")
    axes.axhline(1, color="black", linewidth=0.5)
    axes.set_xticks(workers)
    axes.set_xlabel("workers W, at rate B each; the box has W B")
    axes.set_ylabel("time over M/B")
    axes.set_ylim(bottom=0)
    axes.set_title("An exchange of " + results[0]["model"])
    axes.legend()
    save(figure, folder, "rack.png")


def plot_compress(results, folder):
    figure, axes = new_figure()
    rates = sorted((rate for result in results for rate in result["rates"]),
                   key=lambda rate: rate["rate_mbit"])
    for form in FORMS:
        points = [(rate["rate_mbit"], rate["forms"][form]["million_values_per_s"])
                  for rate in rates if form in rate["forms"]]
        axes.plot(*zip(*points), "o--" if form == "auto" else "o-", label=form)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([rate["rate_mbit"] for rate in rates],
                    [str(rate["rate_mbit"]) for rate in rates])
    axes.minorticks_off()
    axes.set_xlabel("rate of a worker's cable, Mbit/s")
    axes.set_ylabel("million values a second")
    axes.set_title(f"An exchange of {results[0]['model']}, {results[0]['workers']} workers")
    axes.legend()
    save(figure, folder, "compress.png")


def main():
    folder, results = folder_and_results(__doc__)
    for result in results:
        if result["scenario"] == "p3":
            plot_p3(result, folder)
    racks = [result for result in results if result["scenario"] == "rack"]
    if racks:
        plot_rack(racks, folder)
    compressed = [result for result in results if result["scenario"] == "compress"]
    if compressed:
        plot_compress(compressed, folder)


if __name__ == "__main__":
    main()

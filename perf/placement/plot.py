#!/usr/bin/python3
"""Plots what boxes, ranks and chunks cost the control plane, from the JSON of pbox-perf scale.

  perf/placement/plot.py FOLDER RESULT.json    one PNG

Needs matplotlib (python3-matplotlib).
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from plots import folder_and_results, new_figure, save  # noqa: E402: in the parent folder

STEPS = ("plan", "join", "drain", "failover")
SERIES = {"by_ranks": ("ranks", "-", lambda row: row["jobs"] * row["ranks_per_job"]),
          "by_chunks": ("chunks", ":", lambda row: row["chunks_per_job"]),
          "by_boxes": ("boxes", "--", lambda row: row["boxes"])}


def plot_scale(result, folder):
    """Sizes are drawn as shares of the largest, so that all series have the same axis."""
    figure, axes = new_figure()
    for index, step in enumerate(STEPS):
        for series, (label, style, size_of) in SERIES.items():
            rows = result[series]["rows"]
            sizes = [size_of(row) / size_of(rows[-1]) for row in rows]
            axes.plot(sizes, [row[step]["control_seconds"] for row in rows], f"o{style}",
                      color=f"C{index}", label=f"{step}, {label}")
    axes.set_xscale("log")
    axes.set_xticks([1 / 16, 1 / 4, 1], ["1/16", "1/4", "1"])
    axes.minorticks_off()
    axes.set_yscale("log")
    axes.set_xlabel("size over the largest size")
    axes.set_ylabel("CPU seconds of all boxes' control threads")
    axes.set_title("Control plane of 64 boxes, up to 1,024 ranks or 10⁶ chunks")
    axes.legend(fontsize=6, ncols=2)
    save(figure, folder, "scale.png")


if __name__ == "__main__":
    output_folder, results = folder_and_results(__doc__)
    plot_scale(results[0], output_folder)

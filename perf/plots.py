"""Functions shared by the scripts that draw pbox-perf's JSON.

Needs matplotlib (python3-matplotlib)."""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402: choose the backend first

SIZE_INCHES = (6.4, 3.8)


def new_figure():
    """Returns (figure, axes)."""
    return plt.subplots(figsize=SIZE_INCHES)


def save(figure, folder, name):
    path = pathlib.Path(folder, name)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)
    print(path)


def folder_and_results(usage):
    """Reads the command line, FOLDER FILE..., and creates the folder. Returns the folder and the
    JSON objects in the last lines of the files."""
    if len(sys.argv) < 3:
        sys.exit(usage.strip())
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    texts = [pathlib.Path(path).read_text(encoding="utf-8") for path in sys.argv[2:]]
    return folder, [json.loads(text.strip().split("\n")[-1]) for text in texts]

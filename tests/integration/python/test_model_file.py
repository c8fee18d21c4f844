"""perf/model_from_torch.py writes models that `pbox-perf --model` reads."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch

TREE = pathlib.Path(__file__).resolve().parents[3]
SCRIPT = TREE / "perf" / "model_from_torch.py"
PERF = pathlib.Path(os.environ["PBOX_BUILD_DIR"]) / "bin" / "pbox-perf"
SKIPPED = 77  # SKIP_RETURN_CODE of the ctest

spec = importlib.util.spec_from_file_location("model_from_torch", SCRIPT)
model_from_torch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(model_from_torch)


class Shared(torch.nn.Module):
    """Registers its layers in another order than it calls them, and uses one weight twice."""

    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(6, 9, bias=False)
        self.attention = torch.nn.MultiheadAttention(6, 2)
        self.first = torch.nn.Embedding(9, 6)
        self.last.weight = self.first.weight
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, words):
        hidden = self.first(words)
        return self.last(self.attention(hidden, hidden, hidden)[0]) * self.scale


def run(*arguments):
    return subprocess.run([str(one) for one in arguments], capture_output=True, text=True,
                          timeout=120, check=False)


class ModelFile(unittest.TestCase):
    def test_layers_come_in_forward_order_with_every_parameter_once(self):
        module = Shared()
        layers = model_from_torch.describe(module, torch.tensor([[1, 2, 3]]))["layers"]
        tensors = {tensor["name"]: tensor["elements"]
                   for layer in layers for tensor in layer["tensors"]}
        self.assertEqual(tensors, {name: parameter.numel()
                                   for name, parameter in module.named_parameters()})
        names = [layer["name"] for layer in layers]
        self.assertLess(names.index("attention"), names.index("last"))
        attention = layers[names.index("attention")]
        # The attention reads its output projection's weights without calling that module.
        self.assertEqual(len(attention["tensors"]), 4)
        self.assertGreater(attention["cost"], 0)

    def test_pbox_perf_reads_what_the_script_writes(self):
        written = run(sys.executable, SCRIPT, "torch.nn.Sequential(torch.nn.Linear(1000, 500), "
                      "torch.nn.ReLU(), torch.nn.Linear(500, 10))", "torch.rand(2, 1000)")
        self.assertEqual(written.returncode, 0, written.stderr)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(written.stdout)
            file.flush()
            command = [PERF, "cost", "--prices", TREE / "perf" / "phub" / "prices.json",
                       "--workers", 2, "--json", "--model", file.name]
            read = run(*command)
            self.assertEqual(read.returncode, 0, read.stderr)
            rows = json.loads(read.stdout.splitlines()[-1])["rows"]
            central = next(row for row in rows if row["place"] == "central" and row["gbps"] == 10)
            megabits = (1000 * 500 + 500 + 500 * 10 + 10) * 32 / 1e6
            self.assertAlmostEqual(central["exchange_ms"], megabits / 10, places=6)
            file.seek(0)
            file.write(written.stdout.replace('"cost"', '"cots"'))
            file.truncate()
            file.flush()
            refused = run(*command)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("layers[0].cots is", refused.stderr)
        self.assertIn("use name, cost, tensors", refused.stderr)


if __name__ == "__main__":
    if not PERF.exists():
        print("skipped: pbox-perf was not built (PBOX_BUILD_PERF)")
        sys.exit(SKIPPED)
    unittest.main()

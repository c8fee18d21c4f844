#!/usr/bin/env python3
"""Writes a model file for `pbox-perf --model` from any torch.nn.Module.

  model_from_torch.py MODULE INPUTS [IMPORT...] > FILE.json

MODULE and INPUTS are Python expressions that may use torch and the modules IMPORT:

  model_from_torch.py 'torchvision.models.resnet18()' 'torch.rand(1, 3, 224, 224)' torchvision
"""
import importlib
import json
import sys
import time

import torch


def describe(module, *inputs):
    """Returns the layers in forward order. A layer's cost is the seconds of its forward pass."""
    names = {one: name for name, one in module.named_modules()}
    # `seconds`: of each module by name, without its children. `running`: [start, seconds of
    # children] of each module in progress.
    seconds, running = {}, []

    def begin(one, _):
        seconds.setdefault(names[one], 0.0)
        running.append([time.perf_counter(), 0.0])

    def end(one, *_):
        start, children = running.pop()
        elapsed = time.perf_counter() - start
        seconds[names[one]] += elapsed - children
        if running:
            running[-1][1] += elapsed

    module(*inputs)  # allocates memory, which would count otherwise
    for one in names:
        one.register_forward_pre_hook(begin)
        one.register_forward_hook(end)
    module(*inputs)
    layers = {name: {"name": name or "module", "cost": cost, "tensors": []}
              for name, cost in seconds.items()}
    for name, parameter in module.named_parameters():
        owner = name.rpartition(".")[0]
        while owner not in layers:  # a module that its parent reads but never calls
            owner = owner.rpartition(".")[0]
        layers[owner]["tensors"].append({"name": name, "elements": parameter.numel()})
    return {"layers": [layer for layer in layers.values() if layer["tensors"]]}


def main(module, inputs, *imports):
    known = {"torch": torch}
    for name in imports:
        importlib.import_module(name)
        known[name.split(".")[0]] = sys.modules[name.split(".")[0]]
    # pylint: disable=eval-used
    model = describe(eval(module, known), *eval(f"[{inputs}]", known))
    json.dump(model, sys.stdout, indent=1)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])

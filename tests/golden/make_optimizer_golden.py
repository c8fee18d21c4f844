#!/usr/bin/env python3
"""Writes optimizer_golden.h: what torch.optim (f32, CPU) does to a few weights in a few steps.

Usage: make_optimizer_golden.py > optimizer_golden.h
The inputs come from a small integer generator, so that only torch's arithmetic decides the table.
"""
import struct
import sys

import torch

WEIGHTS = 19
STEPS = 5

# name, kind, spec fields, torch optimizer
CASES = [
    ("sgd", "kSgd", dict(learning_rate=0.1)),
    ("sgd with decay", "kSgd", dict(learning_rate=0.1, weight_decay=0.01)),
    ("momentum", "kMomentum", dict(learning_rate=0.05, momentum=0.9)),
    ("momentum with decay", "kMomentum", dict(learning_rate=0.05, momentum=0.9, weight_decay=0.01)),
    ("nesterov", "kNesterov", dict(learning_rate=0.05, momentum=0.9)),
    ("nesterov with decay", "kNesterov", dict(learning_rate=0.05, momentum=0.9, weight_decay=1e-3)),
    ("adam", "kAdam", dict(learning_rate=1e-2)),
    ("adam with decay", "kAdam", dict(learning_rate=1e-2, beta1=0.8, beta2=0.99, weight_decay=0.1)),
    ("adamw", "kAdamW", dict(learning_rate=1e-2, weight_decay=0.0)),
    ("adagrad", "kAdagrad", dict(learning_rate=0.1, epsilon=1e-10)),
    ("adagrad with decay", "kAdagrad", dict(learning_rate=0.1, epsilon=1e-6, weight_decay=0.1)),
    ("adamw with decay", "kAdamW", dict(learning_rate=1e-2, epsilon=1e-6, weight_decay=0.1)),
]


def torch_optimizer(kind, spec, parameter):
    decay = spec.get("weight_decay", 0.0)
    if kind in ("kAdam", "kAdamW"):
        factory = torch.optim.Adam if kind == "kAdam" else torch.optim.AdamW
        return factory([parameter], lr=spec["learning_rate"], eps=spec.get("epsilon", 1e-8),
                       betas=(spec.get("beta1", 0.9), spec.get("beta2", 0.999)),
                       weight_decay=decay)
    if kind == "kAdagrad":
        return torch.optim.Adagrad([parameter], lr=spec["learning_rate"], eps=spec["epsilon"],
                                   weight_decay=decay)
    return torch.optim.SGD([parameter], lr=spec["learning_rate"], weight_decay=decay,
                           momentum=spec.get("momentum", 0.0), nesterov=kind == "kNesterov")


def numbers(seed, count):
    """Returns multiples of 2^-15 in (-2, 2), never 0: exact in f32 and in decimal."""
    state = seed
    out = []
    while len(out) < count:
        state = (state * 1103515245 + 12345) % 2**31
        value = (state >> 14) - 2**16
        if value:
            out.append(value / 2**15)
    return out


def fnv1a(values):
    """Returns the 64-bit FNV-1a of the little-endian f32 bytes."""
    digest = 0xcbf29ce484222325
    for byte in struct.pack(f"<{len(values)}f", *values):
        digest = ((digest ^ byte) * 0x100000001b3) % 2**64
    return digest


def braces(values, indent):
    """Returns lines of float literals, of nine digits, which name a float exactly."""
    lines, line = [], indent
    for value in values:
        text = f"{value:.9g}"
        text += "f, " if any(c in text for c in ".en") else ".0f, "
        if len(line) + len(text) > 99:
            lines.append(line.rstrip())
            line = indent
        line += text
    lines.append(line.rstrip().rstrip(","))
    return "\n".join(lines)


def main():
    initial = numbers(7, WEIGHTS)
    gradients = [numbers(100 + step, WEIGHTS) for step in range(STEPS)]
    flat_gradients = [g for step in gradients for g in step]
    everything = initial + flat_gradients
    rows = []
    for name, kind, spec in CASES:
        parameter = torch.nn.Parameter(torch.tensor(initial, dtype=torch.float32))
        optimizer = torch_optimizer(kind, spec, parameter)
        after = []
        for gradient in gradients:
            parameter.grad = torch.tensor(gradient, dtype=torch.float32)
            optimizer.step()
            after += parameter.detach().tolist()
        everything += after
        fields = ",\n      ".join([f".kind = OptimizerKind::{kind}"] +
                           [f".{key} = {spec[key]!r}f" for key in
                            ("learning_rate", "momentum", "beta1", "beta2", "epsilon",
                             "weight_decay") if key in spec])
        rows.append(f'    {{"{name}",\n     {{{fields}}},\n     {{')
        rows.append(f'{braces(after, "         ")}}}}},')
    print("// clang-format off")
    print(f"// Written by make_optimizer_golden.py with torch {torch.__version__}: do not edit.")
    print("#pragma once\n\n#include <cstddef>\n#include <cstdint>\n")
    print('#include "pipeline/optimizer/optimizer.h"\n\nnamespace pbox::optimizer::golden {\n')
    print(f"inline constexpr size_t kWeights = {WEIGHTS};")
    print(f"inline constexpr size_t kSteps = {STEPS};\n")
    print("struct Case {\n  const char* name;\n  OptimizerSpec spec;")
    print("  float weights[kSteps * kWeights];  // after each step\n};\n")
    print(f"inline constexpr float kInitial[kWeights] = {{\n{braces(initial, '    ')}}};\n")
    print("inline constexpr float kGradients[kSteps * kWeights] = {")
    print(f"{braces(flat_gradients, '    ')}}};\n")
    print("inline constexpr Case kCases[] = {")
    print("\n".join(rows))
    print("};\n")
    print("// 64-bit FNV-1a over the bytes of kInitial, kGradients, then each case's weights.")
    print(f"inline constexpr uint64_t kChecksum = {fnv1a(everything):#x};\n")
    print("}  // namespace pbox::optimizer::golden")


if __name__ == "__main__":
    sys.exit(main())

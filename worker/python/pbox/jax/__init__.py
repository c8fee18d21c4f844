"""PBox for JAX: collectives inside traced functions, through host memory.

    client = pbox.Client(mode="collective")
    client.join()

    @jax.jit
    def step(weights, batch):
        gradient = jax.grad(loss)(weights, batch)
        return weights - 0.1 * pbox.jax.all_reduce(client, gradient, "mean")
"""

from __future__ import annotations

from typing import Any

import jax
import numpy
from jax.experimental import io_callback

from ..client import Client

__all__ = ["all_reduce"]


def all_reduce(client: Client, tree: Any, op: str = "sum") -> Any:
    """Combines the arrays of `tree`, which may be one array, with those of all other ranks.

    `client` is a joined pbox.Client of mode "collective". `op` is "sum", "mean" (floating point
    only), "min" or "max". It may be called under jit and scan, not under vmap and grad. The arrays
    pass through host memory. Every rank must reach the same calls in the same order: JAX keeps the
    order of the calls of one program. An error of the exchange ends the program; its text is that
    of the PboxError, which names the rank that is late or differs."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    shapes = [jax.ShapeDtypeStruct(numpy.shape(leaf), jax.numpy.result_type(leaf))
              for leaf in leaves]

    def exchange(*arrays):
        results, operations = [], []
        for array in arrays:
            source = numpy.asarray(array, order="C")
            result = numpy.empty(source.shape, source.dtype)
            results.append(result)
            operations.append(client.collective("all_reduce", source, result, op=op))
        for operation in operations:
            client.wait_collective(operation)
        return results

    combined = io_callback(exchange, shapes, *leaves, ordered=True)
    return jax.tree_util.tree_unflatten(structure, combined)

"""The optimizer that the box runs: its choice, its learning rate and its steps."""

from __future__ import annotations

import ctypes
from typing import Any

from . import _library, _options

OPTIMIZERS = {"sgd": 1, "momentum": 2, "nesterov": 3, "adam": 4, "adamw": 5, "adagrad": 6}


class OptimizerCalls:
    """The calls of Client for the optimizer that the box runs."""

    def set_optimizer(self, kind: str, learning_rate: float, *, momentum: float = 0.0,
                      betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8,
                      weight_decay: float = 0.0, max_grad_norm: float = 0.0,
                      skip_nonfinite: bool = False) -> None:
        """Chooses the optimizer that the box runs. Only with mode "optimize" and before join.

        With `max_grad_norm` the gradient of all tensors together is clipped to that norm. With
        `skip_nonfinite` a round with an infinity or a NaN in its gradient changes nothing. With
        either, each round must push every tensor, and last_step() returns the box's verdicts."""
        options = _library.OptimizerOptions()
        code = _options.choice("optimizer", kind, OPTIMIZERS)
        self._library.pbox_optimizer_options_init_sized(
            ctypes.byref(options), ctypes.sizeof(options), code)
        options.learning_rate = learning_rate
        options.momentum = momentum
        options.beta1, options.beta2 = betas
        options.epsilon = epsilon
        options.weight_decay = weight_decay
        options.max_grad_norm = max_grad_norm
        options.skip_nonfinite = bool(skip_nonfinite)
        self._call(self._library.pbox_set_optimizer, ctypes.byref(options))

    def set_tensor_optimizer(self, tensor: Any, lr_scale: float,
                             weight_decay: float) -> None:
        """Sets a tensor's factor of the learning rate and its own weight decay. Before join."""
        self._call(self._library.pbox_set_tensor_optimizer, tensor.id, lr_scale, weight_decay)

    def set_learning_rate(self, learning_rate: float) -> None:
        """Sets the learning rate from the next round on. This rank must have no operation in
        flight. One rank's call is enough. If several ranks have set it, the rate of the lowest rank
        still in the job counts."""
        self._call(self._library.pbox_set_learning_rate, learning_rate)

    def last_step(self) -> dict[str, Any] | None:
        """Returns the box's newest verdict on a round as a dictionary: `round`, the `norm` of the
        gradient before clipping, `skipped`, and the `loss_scale` and `scale_age` of that round, 0
        if this process has taken a lost rank's place and does not know them. Returns None before
        the first verdict. A round's verdict arrives before its first operation is done. All ranks
        get the same verdicts."""
        step = _library.Step(struct_size=ctypes.sizeof(_library.Step))
        self._call(self._library.pbox_last_step, ctypes.byref(step))
        if step.round == 0:
            return None
        return {"round": step.round, "norm": step.norm, "skipped": step.skipped != 0,
                "loss_scale": step.loss_scale, "scale_age": step.scale_age}

    def set_loss_scale(self, loss_scale: float, scale_age: int = 0) -> None:
        """Sets the factor by which this rank's gradients are multiplied from the next round on; the
        box divides by it. It must be the same on all ranks. Call this before the round's first
        push."""
        self._call(self._library.pbox_set_loss_scale, loss_scale, scale_age)

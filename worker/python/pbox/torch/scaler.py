"""GradScaler: loss scaling for a DistributedOptimizer, where the box unscales and skips."""

from __future__ import annotations

import ctypes
import math
import time
from typing import Any, NoReturn

import torch

from ..errors import InvalidArgument, Timeout
from .optimizer import DistributedOptimizer

_POLL_S = 0.01


class GradScaler:
    """Scales the loss as torch.cuda.amp.GradScaler does, so that small gradients of half precision
    do not vanish.

        optimizer = pbox.torch.DistributedOptimizer(optimizer, model, skip_nonfinite=True)
        scaler = pbox.torch.GradScaler(optimizer)
        for inputs, targets in batches:
            optimizer.zero_grad()
            scaler.scale(loss(model(inputs), targets)).backward()
            scaler.step(optimizer)
            scaler.update()

    The box divides by the scale before it clips and steps, and skips a step whose gradient holds an
    infinity or a NaN. Since every rank learns the same from the box, the scale is the same on all
    ranks. Give all ranks the same arguments. A process that rejoins takes the scale from the job.
    """

    def __init__(self, optimizer, init_scale=2.0 ** 16, growth_factor=2.0, backoff_factor=0.5,
                 growth_interval=2000, enabled=True):
        if not isinstance(optimizer, DistributedOptimizer):
            raise InvalidArgument(
                f"GradScaler: the optimizer is a {type(optimizer).__name__}: give the "
                "DistributedOptimizer, or use torch's GradScaler for an optimizer that runs here")
        if enabled and not optimizer.skips_nonfinite:
            raise InvalidArgument("GradScaler: make the DistributedOptimizer with "
                                  "skip_nonfinite=True or guard=\"reject\", so that the box skips "
                                  "steps that overflow")
        for name, value, is_valid in (
                ("init_scale", init_scale, 0 < init_scale < math.inf),
                ("growth_factor", growth_factor, growth_factor > 1),
                ("backoff_factor", backoff_factor, 0 < backoff_factor < 1),
                ("growth_interval", growth_interval, growth_interval >= 1)):
            if not is_valid:
                raise InvalidArgument(f"GradScaler: {name} is {value}, which is out of range")
        self._optimizer = optimizer
        self._enabled = enabled
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._growth_tracker = 0  # steps since the scale last changed
        self._scale = _single(init_scale)
        self._updated_round = None  # the last step that update() has looked at
        if not enabled:
            return
        last = optimizer.last_step()
        if optimizer.client.rejoin and last is not None:
            # A scale of 0 is not known yet: the other ranks take that step without this process.
            # update() takes the scale once the box reports it.
            if last["loss_scale"] > 0:
                self._follow(last)
        else:
            self._updated_round = None if last is None else last["round"]
            self._tell()

    def scale(self, outputs: Any) -> Any:
        """Returns the loss, or each of several tensors in a list or tuple, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self.scale(output) for output in outputs)
        return outputs * self._scale

    def unscale_(self, optimizer: torch.optim.Optimizer) -> NoReturn:
        """Raises InvalidArgument, because the box unscales gradients."""
        raise InvalidArgument("GradScaler: the box unscales the gradients before it clips them; "
                              "leave unscale_() out, and give DistributedOptimizer max_grad_norm "
                              "to clip")

    def step(self, optimizer: DistributedOptimizer, *arguments: Any, **keywords: Any) -> Any:
        """Calls optimizer.step(). The box skips the step if it must be skipped."""
        if optimizer is not self._optimizer:
            raise InvalidArgument("GradScaler.step: give the DistributedOptimizer that this "
                                  "GradScaler was made with")
        return optimizer.step(*arguments, **keywords)

    def update(self, new_scale: float | None = None) -> None:
        """Lowers the scale if the last step was skipped, and raises it after growth_interval steps
        that were not. `new_scale` sets it instead."""
        if not self._enabled:
            return
        if new_scale is not None:
            if not 0 < float(new_scale) < math.inf:
                raise InvalidArgument(f"GradScaler.update: new_scale is {new_scale}: it must be "
                                      "finite and above 0")
            self._scale = _single(float(new_scale))
            self._tell()
            return
        step = self._last_step()
        if step is not None and step["round"] != self._updated_round:
            self._follow(step)

    def _last_step(self):
        """Returns the last step, with the loss scale that the ranks have used in it."""
        deadline = time.monotonic() + self._optimizer.client.wait_timeout_ms / 1000
        step = self._optimizer.last_step()
        while step is not None and step["loss_scale"] == 0:
            if time.monotonic() > deadline:
                raise Timeout("GradScaler.update: the box has not reported in time the loss scale "
                              f"that the ranks used in round {step['round']}")
            time.sleep(_POLL_S)
            step = self._optimizer.last_step()
        return step

    def _follow(self, step):
        self._updated_round = step["round"]
        self._scale, self._growth_tracker = step["loss_scale"], step["scale_age"]
        if step["skipped"]:
            self._scale = _single(self._scale * self._backoff_factor)
            self._growth_tracker = 0
        else:
            self._growth_tracker += 1
            if self._growth_tracker == self._growth_interval:
                grown = _single(self._scale * self._growth_factor)
                if math.isfinite(grown):
                    self._scale = grown
                self._growth_tracker = 0
        self._tell()

    def _tell(self):
        self._optimizer.client.set_loss_scale(self._scale, self._growth_tracker)

    def get_scale(self) -> float:
        """Returns the scale; 1.0 if disabled."""
        return self._scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        """Returns the argument `enabled`."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """Returns what torch's GradScaler returns, so that checkpoints can be exchanged."""
        if not self._enabled:
            return {}
        return {"scale": self._scale, "growth_factor": self._growth_factor,
                "backoff_factor": self._backoff_factor, "growth_interval": self._growth_interval,
                "_growth_tracker": self._growth_tracker}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a state. Call it on all ranks, between two steps."""
        if not self._enabled:
            return
        if not state_dict:
            raise InvalidArgument("GradScaler.load_state_dict: the state is empty, because it was "
                                  "saved by a disabled GradScaler; load one of an enabled "
                                  "GradScaler")
        self._scale = _single(state_dict["scale"])
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        self._growth_tracker = state_dict["_growth_tracker"]
        self._tell()


def _single(scale):
    """Rounds to single precision, in which the box divides."""
    return ctypes.c_float(scale).value

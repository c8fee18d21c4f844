"""Reads those hyper-parameters of a torch optimizer that the box's optimizers support."""

import torch

from ..errors import InvalidArgument

_UNSUPPORTED = ("dampening", "amsgrad", "maximize", "differentiable", "decoupled_weight_decay",
                "lr_decay", "initial_accumulator_value")
_KINDS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad,
          torch.optim.SparseAdam)
# foreach, fused and capturable may differ: they choose a kernel, not what it computes.
_SAME_IN_ALL_GROUPS = ("momentum", "nesterov", "betas", "eps")


class HyperParameters:
    """The settings of the box's optimizer: one kind, one learning rate, and for each group a factor
    of that learning rate and a weight decay.

    The group with the largest learning rate is the reference. If a scheduler has set "initial_lr",
    the factors are computed from that, because a warm-up may start with all rates at zero."""

    def __init__(self, optimizer):
        if type(optimizer) not in _KINDS:
            raise InvalidArgument(
                f"{type(optimizer).__name__} cannot run on the box: use one of "
                f"{', '.join(kind.__name__ for kind in _KINDS)}")
        self._adam = not isinstance(optimizer, torch.optim.SGD)
        self._groups = optimizer.param_groups
        for index, group in enumerate(self._groups):
            self._check_group(index, group, type(optimizer) is torch.optim.AdamW)
        first = self._groups[0]
        self.momentum = float(first.get("momentum", 0.0))
        self.betas = tuple(map(float, first.get("betas", (0.9, 0.999))))
        self.epsilon = float(first.get("eps", 1e-8))
        self.kind = _kind(optimizer, first)
        rates = [float(group.get("initial_lr", group["lr"])) for group in self._groups]
        self._reference = max(range(len(rates)), key=rates.__getitem__)
        largest = rates[self._reference]
        self.lr_scales = [rate / largest if largest > 0 else 1.0 for rate in rates]
        self.weight_decays = [float(group.get("weight_decay", 0.0)) for group in self._groups]
        self._fixed = self._fixed_values()

    def _check_group(self, index, group, is_adamw):
        for option in _UNSUPPORTED:
            # AdamW is always decoupled, and newer versions of torch say so in its groups.
            if option == "decoupled_weight_decay" and is_adamw:
                continue
            if group.get(option):
                raise InvalidArgument(
                    f"parameter group {index}: {option}={group[option]} is not supported on the "
                    "box")
        for option in _SAME_IN_ALL_GROUPS:
            if group.get(option) != self._groups[0].get(option):
                raise InvalidArgument(
                    f"parameter group {index} has {option}={group[option]}, group 0 has "
                    f"{self._groups[0][option]}: on the box groups may differ only in lr and "
                    "weight_decay")

    def _fixed_values(self):
        names = _SAME_IN_ALL_GROUPS + _UNSUPPORTED + ("weight_decay",)
        return [{name: group[name] for name in names if name in group} for group in self._groups]

    def learning_rate(self):
        """Returns the reference group's current learning rate. Raises if the groups' rates have not
        changed by the same factor, or if anything else in the groups has changed."""
        for index, (now, then) in enumerate(zip(self._fixed_values(), self._fixed)):
            for name, value in now.items():
                if value != then[name]:
                    raise InvalidArgument(
                        f"parameter group {index}: {name} changed from {then[name]} to {value}; "
                        "on the box only lr may change during training")
        rate = float(self._groups[self._reference]["lr"])
        for index, (group, scale) in enumerate(zip(self._groups, self.lr_scales)):
            if abs(float(group["lr"]) - rate * scale) > 1e-6 * max(rate * scale, 1e-30):
                raise InvalidArgument(
                    f"parameter group {index}: lr={float(group['lr'])} is not {scale:g} times the "
                    f"lr={rate} of group {self._reference}, as it was at the start; on the box the "
                    "learning rates of all groups change by the same factor")
        return rate


def _kind(optimizer, group):
    if type(optimizer) is torch.optim.AdamW:
        return "adamw"
    if type(optimizer) in (torch.optim.Adam, torch.optim.SparseAdam):
        return "adam"
    if type(optimizer) is torch.optim.Adagrad:
        return "adagrad"
    if not group["momentum"]:
        return "sgd"
    return "nesterov" if group["nesterov"] else "momentum"

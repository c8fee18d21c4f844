"""DistributedOptimizer: the box runs the optimizer and returns weights layer by layer."""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from ..client import Client
from ..errors import InvalidArgument, Timeout
from . import _layout
from ._closing import Closing
from ._device import classes, common_device
from ._model_hooks import ModelHooks
from ._sent import sent_gradient
from ._ranks import with_process_group
from .hyper_parameters import HyperParameters


class _Slot:
    """A parameter, its tensor in the job, and its progress in this step."""

    __slots__ = ("parameter", "tensor", "weights", "place", "sent", "pushed", "pending", "device",
                 "event")

    def __init__(self, parameter, tensor, weights):
        self.parameter = parameter
        self.tensor = tensor
        self.weights = weights  # the parameter's elements in the order of memory
        self.place = _place(parameter)
        self.sent = sent_gradient(parameter)
        self.pushed = False  # in this step
        self.pending = False  # its new weights may not have arrived yet
        self.device = None  # one of _device.classes; None: libpbox reads and writes in place
        self.event = None  # on a device: behind the copy of the new weights, if that is queued

    def check_place(self):
        """Refuses a parameter that has other memory now: the box writes into the former."""
        if _place(self.parameter) != self.place:
            raise InvalidArgument(
                f"the memory of {self.tensor.name} has been replaced since the optimizer was made, "
                "but the box writes new weights into the former memory: call what replaces it "
                "(model.to(), parameter.data = ..., rnn.flatten_parameters()) before you make the "
                "DistributedOptimizer")


class DistributedOptimizer(Closing, torch.optim.Optimizer):
    """Gives the box a torch.optim.SGD, Adam, AdamW, Adagrad or SparseAdam to run.

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = pbox.torch.DistributedOptimizer(optimizer, model)
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()

    Takes the options of pbox.Client and joins the job. Every rank starts from rank 0's weights.
    Each gradient is sent as soon as backward() has computed it. Until step() `.grad` refuses every
    use, since gradients on the box cannot be clipped or unscaled here; afterwards it is None. The
    layer needed first in the next forward goes first, and the new weights are written in place. A
    layer's next forward waits for that layer alone. A module's state_dict() and its forward in eval
    mode wait for all weights in it. Call synchronize() before reading weights in another way.
    model.load_state_dict() is refused, because the box would overwrite what it writes.

    Without a model, give `named_parameters`. step() then waits for all weights. After a Timeout
    step() can be called again: it sends and waits for what is left.

    Buffers, such as the running statistics of BatchNorm, are not exchanged: each rank has its own.

    The box divides by the number of ranks, so the gradient is the mean. A parameter without a
    gradient on this rank contributes zeros, so that no rank waits for it. The learning rate of a
    step is the one in param_groups at its first gradient. A scheduler takes this object as its
    optimizer. The optimizer's state, such as momentum, is kept on the box. `pboxctl snapshot` saves
    it with the weights; restore="latest" continues from there, and `restored_steps` is the number
    of steps taken by then.

    `max_grad_norm`: the box clips the mean gradient of all parameters together to this norm, as
    torch.nn.utils.clip_grad_norm_ does. `skip_nonfinite`: a step whose gradient holds an infinity
    or a NaN on any rank is skipped on all ranks: weights and optimizer state stay as they are. With
    either, `grad_norm` and `step_skipped` describe the last step, equally on all ranks.
    pbox.torch.GradScaler scales the loss.

    The weight of an nn.Embedding or nn.EmbeddingBag with sparse=True, in host memory, is a table:
    only the rows that some rank's batch has used travel, and only those are stepped. The others
    keep their weights and the optimizer's state, as with torch.optim.SparseAdam. This needs the
    model, not `named_parameters`.

    With `compression` "q8" or "q4" gradients and changes of weights travel in fewer bits
    (docs/compression.md). Parameters of one dimension, such as biases and norms, and those with
    fewer than 4096 elements travel as they are. The parameters must be in host memory.

    With a consistency model other than bsp (pbox.Client), for example sync="ssp" and staleness=3, a
    rank need not wait for the others in each step. This needs recovery="none". `sync_by_tensor`
    gives some parameters a model of their own, by patterns of their names: with {"embedding.*":
    "ssp:3"} all others keep the job's. client.set_sync() changes models later.
    """

    # With this, torch's GradScaler leaves skipping to step(), which refuses that GradScaler.
    _step_supports_amp_scaling = True

    client: Client

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module | None = None, *,
                 named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
                 max_grad_norm: float | None = None, skip_nonfinite: bool = False,
                 sync_by_tensor: Mapping[str, str] | None = None,
                 **options: object) -> None:
        if max_grad_norm is not None and not 0 < max_grad_norm < math.inf:
            raise InvalidArgument(f"max_grad_norm is {max_grad_norm}: it must be finite and above "
                                  "0, or None")
        if (model is None) == (named_parameters is None):
            raise InvalidArgument("give either the model or named_parameters")
        self._hyper_parameters = HyperParameters(optimizer)
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._model = model
        self._step_open = False  # a gradient of this step was sent
        self._step_ends = False  # step() was called and has not returned
        self._is_late = False  # backward() has met a Timeout and leaves what is left to step()
        self._max_grad_norm = max_grad_norm or 0.0
        self._skip_nonfinite = bool(skip_nonfinite)
        self._verdict = None  # the verdict on the step before the open one
        self._loss = None
        self._accumulating = False
        self._handles = []
        self.client = Client(mode="optimize", **with_process_group(model, options))
        try:
            self._slots = self._register(named_parameters or model.named_parameters())
            for pattern, sync in (sync_by_tensor or {}).items():
                self.client.set_sync(sync, pattern)
            warn_of_statistics(model, self.client.world_size)
            self._set_box_optimizer()
            self.client.join()
            self._init_weights()
        except BaseException:
            self.client.close()
            raise
        self._install_hooks()

    def _register(self, named_parameters):
        mine = {id(parameter): index for index, group in enumerate(self.param_groups)
                for parameter in group["params"] if parameter.requires_grad}
        # A dictionary, because the caller's list may name a shared parameter twice.
        named = {id(parameter): (name, parameter) for name, parameter in named_parameters
                 if id(parameter) in mine}
        if len(named) != len(mine):
            raise InvalidArgument(f"{len(mine) - len(named)} parameters of the optimizer are "
                                  "not among the named parameters")
        self._group_index = mine
        check_embeddings(self._model, mine)
        tables = sparse_weights(self._model)
        slots = []
        for position, (name, parameter) in enumerate(named.values()):
            if parameter.numel() == 0:
                continue  # nothing to optimize
            weights = _flat(name, parameter.detach())
            is_table = id(parameter) in tables
            if is_table:
                check_table(name, parameter)
            tensor = self.client.register(
                _layout.name_with_order(name, parameter),
                parameter.detach() if is_table else weights, priority=len(named) - position,
                table=is_table, compression="none" if parameter.dim() < 2 else None)
            slots.append(_Slot(parameter, tensor, weights))
        return slots

    def _set_box_optimizer(self):
        hyper = self._hyper_parameters
        self._learning_rate = hyper.learning_rate()
        self.client.set_optimizer(
            hyper.kind, self._learning_rate, momentum=hyper.momentum, betas=hyper.betas,
            epsilon=hyper.epsilon, weight_decay=hyper.weight_decays[0],
            max_grad_norm=self._max_grad_norm, skip_nonfinite=self._skip_nonfinite)
        for slot in self._slots:
            index = self._group_index[id(slot.parameter)]
            self.client.set_tensor_optimizer(
                slot.tensor, hyper.lr_scales[index], hyper.weight_decays[index])

    def _init_weights(self):
        devices = {}  # by torch.device
        for slot in self._slots:
            device = common_device([slot.weights])
            if device is None:
                self.client.init_weights(slot.tensor, slot.weights)
            elif self.client.compression != "none":
                raise InvalidArgument(
                    "with compression the parameters must be in host memory; leave compression "
                    "out, or move the model to the CPU")
            else:
                if device not in devices:
                    devices[device] = classes[device.type](self.client, device)
                slot.device = devices[device]
                slot.device.push(slot.tensor, slot.weights, initial_weights=True)
            slot.pending = True
        self.synchronize()

    def _install_hooks(self):
        self._nodes = []
        for slot in self._slots:
            self._handles.append(slot.parameter.register_hook(
                functools.partial(self._gradient_comes, slot)))
            ready = functools.partial(self._gradient_ready, slot)
            if hasattr(slot.parameter, "register_post_accumulate_grad_hook"):
                self._handles.append(slot.parameter.register_post_accumulate_grad_hook(ready))
            else:
                # The node that accumulates the gradient must stay referenced.
                node = slot.parameter.expand_as(slot.parameter).grad_fn.next_functions[0][0]
                self._nodes.append(node)
                self._handles.append(node.register_hook(ready))
        self._model_hooks = ModelHooks(self._model, self._slots, self._wait_for)
        self._handles += self._model_hooks.handles

    @staticmethod
    def _gradient_comes(slot, _):
        if slot.pushed:
            raise RuntimeError(
                f"the gradient of {slot.tensor.name} was computed twice before step(): call step() "
                "after each backward(), or run all but the last under no_sync()")

    def _gradient_ready(self, slot, *_):
        if self._accumulating or self._is_late:
            return
        try:
            self._push(slot, slot.parameter.grad)
        except Timeout:
            self._is_late = True  # backward() goes on, since step() needs all gradients

    def _push(self, slot, gradient):
        slot.check_place()
        if not self._step_open:
            self._open_step()
        rows = sparse_rows(slot, gradient) if gradient.layout != torch.strided else None
        self._wait(slot)
        if rows is not None:
            self.client.push_pull_rows(slot.tensor, *rows, slot.weights)
        else:
            gradient = _layout.flat(_layout.like(gradient, slot.parameter))
            if slot.device is None:
                self.client.push_pull(slot.tensor, gradient, slot.weights)
            else:
                slot.device.push(slot.tensor, gradient)
                slot.event = None
        # Replaced, so that zero_grad() cannot overwrite what libpbox may still read.
        slot.parameter.grad = slot.sent
        slot.pushed = slot.pending = True

    def _open_step(self):
        """Starts a step. The learning rate can change only here, between two steps."""
        if self._max_grad_norm or self.skips_nonfinite:
            self.last_step()
        learning_rate = self._hyper_parameters.learning_rate()
        if learning_rate != self._learning_rate:
            self.synchronize()
            # All ranks set it, because rank 0 may be lost. The lowest rank still in the job counts,
            # and it has set the rate before any round can end with its gradient.
            self.client.set_learning_rate(learning_rate)
            self._learning_rate = learning_rate
        self._step_open = True

    def _wait_for(self, slots):
        for slot in slots:
            self._wait(slot)

    def _wait(self, slot):
        if slot.pending:
            self.client.wait(slot.tensor)
            if slot.device is not None:  # the device waits for the copy of the new weights
                self._queue_copy(slot)
                slot.device.wait(slot.event)
            slot.pending = False

    @staticmethod
    def _queue_copy(slot):
        """On a device: queues the copy of the new weights to it, if that is not queued yet."""
        if slot.device is not None and slot.event is None:
            slot.event = slot.device.pull(slot.tensor, slot.weights)

    @property
    def skips_nonfinite(self) -> bool:
        """True if the argument `skip_nonfinite` is set, or if guard is "reject"."""
        return self._skip_nonfinite or self.client.guard == "reject"

    @property
    def restored_steps(self) -> int:
        """The number of steps that the restored snapshot's weights had taken; 0 if training started
        from rank 0's weights."""
        return self.client.statistics()["restored_steps"]

    @property
    def grad_norm(self) -> float | None:
        """The norm of the mean gradient in the last step, before clipping and without the loss
        scale. Waits until the box has it. None before the first step."""
        verdict = self.last_step()
        return None if verdict is None else verdict["norm"]

    @property
    def step_skipped(self) -> bool:
        """True if the last step was skipped, because its gradient held an infinity or a NaN."""
        verdict = self.last_step()
        return verdict is not None and verdict["skipped"]

    def last_step(self) -> dict[str, Any] | None:
        """Returns what Client.last_step() does, for the last step() that has returned. Only with
        `max_grad_norm`, `skip_nonfinite` or guard "reject"."""
        if not self._step_open:
            # The verdict comes before the first new weights.
            self._wait_for(self._slots[:1])
            self._verdict = self.client.last_step()
        return self._verdict

    def contributors(self) -> int:
        """Returns how many ranks were in the last step that has arrived, the minimum over all
        parameters. Below the world size only with on_worker_lost="partial"."""
        return min(self.client.contributors(slot.tensor) for slot in self._slots)

    def synchronize(self) -> None:
        """Waits until all new weights are in place."""
        self._wait_for(self._slots)

    def step(self, closure: Callable[[], Any] | None = None, *,
             grad_scaler: Any = None) -> Any:
        """Ends a step: sends the gradients that backward() has not sent, and zeros for parameters
        without one. Waits for all weights if the model's forward() was not called, because then no
        forward waits for them. After a Timeout call it again: it then sends and waits for what is
        left, without calling the closure. `grad_scaler`: torch's GradScaler passes itself here, and
        is refused."""
        if grad_scaler is not None or getattr(self, "found_inf", None) is not None:
            raise InvalidArgument("DistributedOptimizer: torch's GradScaler cannot unscale "
                                  "gradients or skip steps on the box; use pbox.torch.GradScaler")
        if not self._step_ends:
            self._loss = None
            if closure is not None:
                with torch.enable_grad():
                    self._loss = closure()
            if not self._step_open and all(slot.parameter.grad is None for slot in self._slots):
                return self._loss  # like torch's optimizers: no gradient, no step
            self._step_ends = True
        self._is_late = False
        for slot in self._slots:
            if not slot.pushed:
                gradient = slot.parameter.grad
                self._push(slot, _no_gradient(slot) if gradient is None else gradient)
        # Copies are queued in the order of the next forward, in which the new weights arrive.
        for slot in self._slots:
            self._queue_copy(slot)
        if not self._model_hooks.root_called:  # no forward waits for the weights
            self.synchronize()
        self._end_step()
        if self._hyper_parameters.learning_rate() != self._learning_rate:
            raise InvalidArgument("lr was changed between backward() and step(): the box has used "
                                  "the former value in this step; change lr before backward() or "
                                  "after step()")
        return self._loss

    def _end_step(self):
        for slot in self._slots:
            slot.pushed = False
            if slot.parameter.grad is slot.sent:
                slot.parameter.grad = None
        self._step_open = self._step_ends = self._model_hooks.root_called = False

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which backward() only accumulates. The next one outside sends the sum."""
        self._accumulating, before = True, self._accumulating
        try:
            yield
        finally:
            self._accumulating = before

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Allowed only in the constructor: the box must know every tensor when the job starts."""
        if hasattr(self, "_slots"):
            raise InvalidArgument("parameters cannot be added after the join; give all of them to "
                                  "the constructor")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Returns the param_groups. The optimizer's state is on the box and not included."""
        self.synchronize()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores param_groups, in place because the scheduler shares them."""
        if state_dict["state"]:
            raise InvalidArgument("this state_dict is from a local optimizer; the box cannot load "
                                  "it, because it keeps its own state")
        if len(state_dict["param_groups"]) != len(self.param_groups):
            raise InvalidArgument(f"this state_dict has {len(state_dict['param_groups'])} "
                                  "parameter groups, but the optimizer has "
                                  f"{len(self.param_groups)}")
        for group, saved in zip(self.param_groups, state_dict["param_groups"]):
            group.update({name: value for name, value in saved.items() if name != "params"})

    def close(self) -> None:
        """Waits for the last weights and leaves the job."""
        try:
            self.synchronize()
        finally:
            self._release()

    def _release(self):
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.client.close()


def _place(parameter):
    return parameter.data_ptr(), parameter.stride()


def _flat(name, weights):
    try:
        return _layout.flat(weights)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from None


def _embeddings(model):
    """Yields each embedding of the model, which may be None, with its name."""
    for name, module in model.named_modules() if model is not None else ():
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
            yield name, module


def check_embeddings(model, optimized):
    """`optimized`: the ids of the parameters that the box steps."""
    for name, module in _embeddings(model):
        if module.max_norm is not None and id(module.weight) in optimized:
            raise InvalidArgument(
                f"{name or 'the model'} is an embedding with max_norm={module.max_norm}: its "
                "forward() scales rows of the weight on this rank alone, and the box, which keeps "
                "the weights, would undo that; leave max_norm out")


def sparse_weights(model):
    """Returns the ids of the parameters whose gradients are sparse."""
    return {id(module.weight) for _, module in _embeddings(model) if module.sparse}


def check_table(name, parameter):
    if parameter.device.type != "cpu":
        raise InvalidArgument(f"{name} is on {parameter.device} and its gradient is sparse: tables "
                              "are exchanged only in host memory; keep the embedding there, or set "
                              "sparse=False")
    if not parameter.is_contiguous():
        raise InvalidArgument(f"{name} is not contiguous, and its gradient is sparse: the rows of "
                              "a table must be contiguous; set sparse=False, or use a contiguous "
                              "copy")


def sparse_rows(slot, gradient):
    """Returns the row numbers of a sparse gradient, ascending, and its rows."""
    if slot.tensor.row_elements == 0 or gradient.layout != torch.sparse_coo:
        raise InvalidArgument(
            f"the gradient of {slot.tensor.name} is sparse: DistributedOptimizer takes sparse "
            "gradients only of nn.Embedding(sparse=True) and nn.EmbeddingBag(sparse=True) in the "
            "model that it was given; give it the model, or set sparse=False")
    gradient = gradient.coalesce()
    return gradient.indices()[0].contiguous(), gradient.values().contiguous()


def _no_gradient(slot):
    """Returns the gradient of a parameter that has none."""
    parameter = slot.parameter
    if slot.tensor.row_elements == 0:
        return torch.zeros_like(parameter)
    ids = torch.zeros((1, 0), dtype=torch.int64)
    rows = torch.zeros((0, *parameter.shape[1:]), dtype=parameter.dtype)
    return torch.sparse_coo_tensor(ids, rows, parameter.shape)


def warn_of_statistics(model, world_size):
    """Warns if the ranks' running statistics will differ. SyncBatchNorm keeps them equal."""
    kinds = torch.nn.modules.batchnorm._NormBase
    names = [name for name, module in (model.named_modules() if model is not None else ())
             if isinstance(module, kinds) and not isinstance(module, torch.nn.SyncBatchNorm)
             and module.running_mean is not None]
    if names and world_size > 1:
        warnings.warn(
            f"the running statistics of {len(names)} layers ({names[0]}, ...) are not exchanged: "
            "each rank keeps its own. Average them before evaluation or a checkpoint, or train "
            "with DistributedDataParallel and pbox.torch.DDPCommHook", stacklevel=3)

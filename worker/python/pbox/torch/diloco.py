"""DiLoCo and LocalSGD: ranks train on their own for many steps, and the box is the outer optimizer.

Sources: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models"
(arXiv 2311.08105), algorithm 1; Douillard et al., "Streaming DiLoCo with overlapping communication"
(arXiv 2501.18512), algorithm 2: fragments, delay and the blend with `alpha`.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from typing import Any

import torch

from ..client import Client
from ..errors import InvalidArgument
from . import _layout
from ._closing import Closing
from ._ranks import with_process_group

_WIRES = {"f32": "none", "q8": "q8", "q4": "q4"}
# Options that are not to be set, and the advice that follows.
_SET_BY_DILOCO = {"mode": "", "compression": ", and give `wire`", "grace_ms": ", and give `grace`",
                  "weighted": ", and give `weight`"}


class _Slot:
    """A parameter, its tensor in the job, and the box's weights of it."""

    __slots__ = ("name", "parameter", "tensor", "anchor", "change")

    def __init__(self, name, parameter):
        self.name = name
        self.parameter = parameter
        self.tensor = None
        # In host memory and f32, in the parameter's order of memory. The anchor is the box's newest
        # result, and the change what this rank has trained since.
        self.anchor = self.weights().to("cpu", torch.float32, copy=True)
        self.change = torch.empty_like(self.anchor)

    def weights(self):
        """Returns a view of the parameter's elements, or of this rank's shard of them."""
        return _layout.flat(local_part(self.parameter))

    def adopt(self, alpha):
        """Blends the box's weights into the parameter."""
        weights = self.weights()
        newest = self.anchor.to(weights.device, weights.dtype)
        if alpha == 0:
            weights.copy_(newest)
        else:
            weights.copy_(torch.lerp(newest, weights, alpha))


class Fragment:
    """Some of the parameters, exchanged together, at the same steps in each period."""

    def __init__(self, slots: list[_Slot], period: int, offset: int, delay: int) -> None:
        self.slots = slots
        self._period = period
        self._delay = delay
        # The first step after which a result is adopted. Its change is sent after step 1 or later.
        self._first = offset if offset > delay else offset + period
        self.in_flight = False
        self.tokens = 0  # tokens that this rank has trained on since it last sent a change

    def pushes_after(self, step: int) -> bool:
        return self._is_due(step + self._delay)

    def adopts_after(self, step: int) -> bool:
        return self._is_due(step)

    def _is_due(self, step):
        return step >= self._first and (step - self._first) % self._period == 0

    def push_step(self, index: int) -> int:
        """Returns the step after which change number `index` is sent, counted from 0."""
        return self._first - self._delay + index * self._period

    def push_index(self, step: int) -> int:
        """Returns the number of the change that is sent after the step."""
        return (step + self._delay - self._first) // self._period


class DiLoCo(Closing):
    """Trains with few exchanges: each rank takes `sync_every` steps on its own, sends by how much
    its weights have changed, and the box takes an outer step with the mean of the changes.

        inner = torch.optim.AdamW(model.parameters(), lr=4e-4)
        with pbox.torch.DiLoCo(model, inner, sync_every=24, fragments=4, delay=2) as diloco:
            for inputs, targets in batches:
                inner.zero_grad()
                loss(model(inputs), targets).backward()
                inner.step()

    Takes the options of pbox.Client, and joins the job. Every rank starts from rank 0's weights.
    Until close() each step of the inner optimizer counts, whether `inner.step()`, a GradScaler or
    diloco.step() takes it. Ranks should have data of their own, and take the same number of steps.
    A step that torch's GradScaler skips does not count, so train until `steps` is large enough.

    `fragments`: the parameters are divided into this many parts of about the same size, in the
    model's order, and exchanged in turn, each once in `sync_every` steps, so that the link carries
    them one after another. A parameter is not divided.
    `delay`: a result is adopted this many steps after the change was sent. Meanwhile training goes
    on. 0: the step waits for the result. Less than `sync_every`.
    `alpha`: when a result is adopted, the weights become alpha * own + (1 - alpha) * the box's. 0
    forgets what this rank has trained during the delay; Streaming DiLoCo uses 0.5.
    `outer`: `lr`, `momentum` and `nesterov` of the outer optimizer, SGD; by default 0.7, 0.9, True.
    `wire`: changes and weights travel as "f32", or in blocks of "q8" or "q4" (docs/compression.md);
    parameters of one dimension travel as f32 all the same.
    `quorum`: the box takes an outer step once this many ranks have sent their changes and `grace`
    has passed since then. `grace` is a number of milliseconds, or "auto" (the default): as long as
    most ranks have needed so far. The changes of a late rank count in the next outer step; with
    late_pushes="drop" they are lost. The late rank gets the newest weights at once, so no rank
    waits for it. None: all ranks. With a quorum the options are on_worker_lost="partial" and
    recovery="none" unless they are given. With `wire` "q8" or "q4" a rank that was late receives
    the weights as f32, once.
    `weight`: the box's mean counts every change once ("equal"), or weights it by the number of
    tokens that the rank has trained on since it last sent that fragment ("tokens"): then call
    add_tokens() before each step.
    `state`: what state_dict() has returned before a restart.

    Parameters may be of any floating point type; those on a device pass through the host. A rank
    keeps two copies of them in host memory, as f32, beside those that `recovery` takes. A learner
    may be several processes, among which FSDP2 (fully_shard) has sharded the model: the processes
    with the same shard of all learners are a job of their own, so give `job`, `rank` and
    `world_size`.

    A process that comes back with rejoin=True begins with the box's weights, at the step of the
    period that the others are at. With on_worker_lost="partial" the others do not wait for a lost
    rank longer than lost_timeout_ms. `pboxctl snapshot` saves the weights and the outer momentum;
    restore="latest" continues from there.

    After a Timeout, call step() again: it then only waits for what is left, and takes no step.
    """

    client: Client

    def __init__(self, model: torch.nn.Module, inner_optimizer: torch.optim.Optimizer, *,
                 sync_every: int, fragments: int = 1, delay: int = 0, alpha: float = 0.0,
                 outer: Mapping[str, Any] | None = None, wire: str = "f32",
                 quorum: int | None = None, grace: int | str | None = None, weight: str = "equal",
                 state: Mapping[str, Any] | None = None, **options: Any) -> None:
        kind, learning_rate, momentum = _outer_optimizer(outer or {})
        _check(sync_every, fragments, delay, alpha, wire, weight, options)
        options = {**_quorum_options(quorum, grace), **options}
        self._weighs_tokens = weight == "tokens"
        self._inner = inner_optimizer
        self._alpha = alpha
        self._unadopted = []  # fragments whose results are due
        self._fragments = _fragments(model, sync_every, fragments, delay)
        self._slots = [slot for fragment in self._fragments for slot in fragment.slots]
        self.client = Client(mode="optimize", compression=_WIRES[wire],
                             weighted=int(self._weighs_tokens),
                             **with_process_group(model, options))
        try:
            self._join(kind, learning_rate, momentum, state)
        except BaseException:
            self.client.close()
            raise
        self._count_steps()

    def _join(self, kind, learning_rate, momentum, state):
        for position, slot in enumerate(self._slots):
            slot.tensor = self.client.register(
                _layout.name_with_order(slot.name, local_part(slot.parameter)), slot.anchor,
                priority=len(self._slots) - position,
                compression="none" if slot.parameter.dim() < 2 else None)
        self.client.set_optimizer(kind, learning_rate, momentum=momentum)
        if state is not None:
            _load_anchors(state["anchors"], self._slots)
        self.client.join()
        for slot in self._slots:
            self.client.init_weights(slot.tensor, slot.anchor)
        kept = set()  # slots with the saved anchor: training since that anchor still counts
        for slot in self._slots:
            self.client.wait(slot.tensor)
            if state is None or not torch.equal(slot.anchor, state["anchors"][slot.name]):
                slot.adopt(alpha=0)
                continue
            kept.add(slot)
            if slot.name in state["pending"]:
                slot.adopt(self._alpha)
        for fragment, tokens in zip(self._fragments, (state or {}).get("tokens", ())):
            if kept.issuperset(fragment.slots):
                fragment.tokens = tokens
        self._steps = self._steps_of_job()

    def _pushed(self, slot):
        """Returns how many changes of the parameter this rank has sent, including those that the
        others sent before it joined. A tensor's first round is that of the initial weights."""
        return self.client.tensor_round(slot.tensor) - 1

    def _steps_of_job(self):
        """Returns how many steps the other ranks had taken, or a few less, when this one joined."""
        if not any(self._pushed(slot) for slot in self._slots):
            return 0
        return min(fragment.push_step(self._pushed(slot))
                   for fragment in self._fragments for slot in fragment.slots) - 1

    def _count_steps(self):
        step = self._inner.step
        self._is_open = True

        def counted(optimizer, *arguments, **keywords):
            if not self._is_open:
                return step(*arguments, **keywords)
            if self._unadopted:  # the last call has ended with an error
                self._adopt_due()
                return None
            self._check_tokens()
            result = step(*arguments, **keywords)
            self._end_step()
            return result

        # This must be a method, because learning rate schedulers wrap it as one.
        for name in ("_with_counter", "_wrapped_by_lr_sched"):  # torch before 2.4, and since
            if hasattr(step, name):
                setattr(counted, name, getattr(step, name))
        self._inner.step = types.MethodType(counted, self._inner)

    def _check_tokens(self):
        for fragment in self._fragments:
            if self._weighs_tokens and fragment.pushes_after(self._steps + 1) \
                    and fragment.tokens < 1:
                raise InvalidArgument("no tokens were counted since the last exchange, but weight "
                                      "is 'tokens': call add_tokens() before each step")

    def _end_step(self):
        self._steps += 1
        for fragment in self._fragments:
            if fragment.pushes_after(self._steps):
                self._push(fragment)
        self._unadopted = [fragment for fragment in self._fragments
                           if fragment.in_flight and fragment.adopts_after(self._steps)]
        self._adopt_due()

    def _push(self, fragment):
        index = fragment.push_index(self._steps)
        weight = self.client.round_weight(fragment.tokens) if self._weighs_tokens else 0
        for slot in fragment.slots:
            if self._pushed(slot) > index:
                continue  # a rank that has joined meanwhile has fetched the result
            torch.sub(slot.anchor, slot.weights().to("cpu", torch.float32), out=slot.change)
            if weight > 0:
                slot.change.mul_(weight)
            self.client.push_pull(slot.tensor, slot.change, slot.anchor, weight=weight)
        fragment.in_flight = True
        fragment.tokens = 0

    def _adopt_due(self):
        while self._unadopted:
            fragment = self._unadopted[0]
            self._wait(fragment)
            for slot in fragment.slots:
                slot.adopt(self._alpha)
            fragment.in_flight = False
            self._unadopted.pop(0)

    def _wait(self, fragment):
        for slot in fragment.slots:
            self.client.wait(slot.tensor)

    @property
    def steps(self) -> int:
        """The number of inner steps since the job began. A process that joins later begins with a
        number at which its next exchange is also the next one of the others."""
        return self._steps

    def step(self, closure: Any = None) -> Any:
        """Takes a step of the inner optimizer, as `inner_optimizer.step(closure)` does."""
        return self._inner.step(closure)

    def add_tokens(self, count: int) -> None:
        """With weight="tokens": adds the number of tokens that the next step trains on, at least 1.
        Call it before that step. A different unit, for example samples, will do if all ranks use
        it."""
        if not self._weighs_tokens:
            raise InvalidArgument("tokens count only with weight='tokens': give it, or do without "
                                  "add_tokens()")
        if count < 1:
            raise InvalidArgument(f"count is {count}: it must be at least 1")
        for fragment in self._fragments:
            fragment.tokens += count

    def state_dict(self) -> dict[str, Any]:
        """Returns the box's weights, to which the model's and the inner optimizer's states belong:
        save all three, after the same step. Waits for what is in flight. The outer momentum is on
        the box; `pboxctl snapshot` saves it."""
        pending = []
        for fragment in self._fragments:
            if fragment.in_flight:
                self._wait(fragment)
                pending += [slot.name for slot in fragment.slots]
        return {"anchors": {slot.name: slot.anchor.clone() for slot in self._slots},
                "pending": pending, "tokens": [fragment.tokens for fragment in self._fragments]}

    def contributors(self) -> int:
        """Returns how many changes were in the last results, the minimum over all parameters. It is
        below the world size only with a quorum or on_worker_lost="partial"."""
        return min(self.client.contributors(slot.tensor) for slot in self._slots)

    def synchronize(self) -> None:
        """Gives the model the box's weights, the same on all ranks that call it after the same
        step; with a quorum, those that this rank got last. Waits for what is in flight. Training
        can go on, without what this rank has trained since its last exchange: call it before
        evaluation at the end."""
        for fragment in self._fragments:
            self._wait(fragment)
            fragment.in_flight = False
            for slot in fragment.slots:
                slot.adopt(alpha=0)
        self._unadopted.clear()

    def close(self) -> None:
        """Waits for what is in flight and leaves the job. The model keeps this rank's weights."""
        try:
            for fragment in self._fragments:
                if fragment.in_flight:
                    self._wait(fragment)
        finally:
            self._release()

    def _release(self):
        self._is_open = False
        self.client.close()


class LocalSGD(DiLoCo):
    """Averages the weights of all ranks every `sync_every` steps (McMahan et al., FedAvg, AISTATS
    2017; Stich, ICLR 2019): DiLoCo whose outer step is the mean of the changes."""

    def __init__(self, model: torch.nn.Module, inner_optimizer: torch.optim.Optimizer, *,
                 sync_every: int, **options: Any) -> None:
        if "outer" in options:
            raise InvalidArgument("LocalSGD has no outer optimizer; use DiLoCo, or leave `outer` "
                                  "out")
        super().__init__(model, inner_optimizer, sync_every=sync_every,
                         outer={"lr": 1.0, "momentum": 0.0, "nesterov": False}, **options)


def local_part(parameter):
    """Returns this rank's shard of a parameter that FSDP2 has sharded, or the whole parameter if it
    is not sharded, without gradients."""
    whole = parameter.detach()
    return whole.to_local() if hasattr(whole, "to_local") else whole


def _outer_optimizer(outer):
    unknown = set(outer) - {"lr", "momentum", "nesterov"}
    if unknown:
        raise InvalidArgument(f"outer has {sorted(unknown)[0]!r}; it knows lr, momentum and "
                              "nesterov")
    learning_rate, momentum = outer.get("lr", 0.7), outer.get("momentum", 0.9)
    if not 0 < learning_rate < math.inf:
        raise InvalidArgument(f"outer lr is {learning_rate}: it must be finite and above 0")
    if not 0 <= momentum < 1:
        raise InvalidArgument(f"outer momentum is {momentum}: it must be at least 0 and below 1")
    if momentum == 0:
        return "sgd", learning_rate, 0.0
    kind = "nesterov" if outer.get("nesterov", True) else "momentum"
    return kind, learning_rate, momentum


def _check(sync_every, fragments, delay, alpha, wire, weight, options):
    if sync_every < 1:
        raise InvalidArgument(f"sync_every is {sync_every}: it must be at least 1")
    if not 1 <= fragments <= sync_every:
        raise InvalidArgument(f"fragments is {fragments}: it must be at least 1, and at most "
                              f"sync_every, {sync_every}, because each fragment is exchanged at "
                              "its own step")
    if not 0 <= delay < sync_every:
        raise InvalidArgument(f"delay is {delay}: it must be at least 0 and below sync_every, "
                              f"{sync_every}")
    if not 0 <= alpha < 1:
        raise InvalidArgument(f"alpha is {alpha}: it must be at least 0 and below 1")
    if wire not in _WIRES:
        raise InvalidArgument(f"wire is {wire!r}: it must be one of {', '.join(_WIRES)}")
    if weight not in ("equal", "tokens"):
        raise InvalidArgument(f"weight is {weight!r}: it must be one of equal, tokens")
    if options.get("sync", "bsp") != "bsp":
        raise InvalidArgument(f"sync is {options['sync']!r}: DiLoCo needs the changes of several "
                              "ranks for an outer step; leave sync out, and give `quorum` if it "
                              "need not wait for all of them")
    for name, instead in _SET_BY_DILOCO.items():
        if name in options:
            raise InvalidArgument(f"DiLoCo sets {name} itself; leave it out{instead}")


def _quorum_options(quorum, grace):
    """Returns the options of the job by which a round needs only some ranks."""
    if quorum is None:
        if grace is not None:
            raise InvalidArgument(f"grace is {grace!r}, but without a quorum an outer step waits "
                                  "for all ranks; give `quorum`, or leave grace out")
        return {}
    if quorum < 1:
        raise InvalidArgument(f"quorum is {quorum}: it must be at least 1")
    return {"sync": "drop", "quorum": quorum, "grace_ms": "auto" if grace is None else grace,
            "late_pushes": "next", "recovery": "none", "on_worker_lost": "partial"}


def _fragments(model, sync_every, count, delay):
    named = [(name, parameter) for name, parameter in model.named_parameters()
             if parameter.requires_grad and parameter.numel() > 0]
    if len(named) < count:
        raise InvalidArgument(f"fragments is {count}, but the model has {len(named)} parameters "
                              "to train")
    # Sizes are those of whole parameters, so that all shards of one are in the same fragment.
    groups = divide([parameter.numel() for _, parameter in named], count)
    return [Fragment([_Slot(*named[position]) for position in positions
                      if local_part(named[position][1]).numel() > 0],
                     sync_every, (index + 1) * sync_every // count, delay)
            for index, positions in enumerate(groups)]


def divide(sizes: list[int], count: int) -> list[range]:
    """Divides positions into `count` runs, none of them empty, of about the same total size: a run
    ends where the sum so far comes nearest to its share of the whole."""
    groups = []
    begin, before = 0, 0
    for index in range(count):
        share = sum(sizes) * (index + 1) / count
        end, total = begin + 1, before + sizes[begin]
        last = len(sizes) - (count - index - 1)
        while end < last and abs(total + sizes[end] - share) <= abs(total - share):
            total += sizes[end]
            end += 1
        if index == count - 1:
            end = len(sizes)
        groups.append(range(begin, end))
        begin, before = end, total
    return groups


def _load_anchors(saved, slots):
    for slot in slots:
        anchor = saved.get(slot.name)
        if anchor is None or anchor.shape != slot.anchor.shape:
            raise InvalidArgument(f"state has no weights of {slot.name} with {slot.anchor.numel()} "
                                  "elements: it belongs to another model")
        slot.anchor.copy_(anchor)

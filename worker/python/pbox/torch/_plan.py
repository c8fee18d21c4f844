"""Plans the collectives of libpbox that carry out an operation of torch.distributed, and what this
rank does before and after them. On a CUDA device, all of that is queued on streams."""

import torch
import torch.distributed as dist

from ..errors import InvalidArgument

_SUMMED = {torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64,
           torch.int8, torch.uint8}
_BOX_OPERATORS = {"SUM": "sum", "MIN": "min", "MAX": "max"}
_FOLDS = {"SUM": torch.add, "MIN": torch.minimum, "MAX": torch.maximum, "PRODUCT": torch.mul,
          "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}


def _fold(name, all_ranks):
    """Combines the rows in their order. float16 and bfloat16 are rounded once."""
    dtype = all_ranks.dtype
    wide = all_ranks.float() if dtype in (torch.float16, torch.bfloat16) else all_ranks
    result = wide[0]
    for other in wide[1:]:
        result = _FOLDS[name](result, other)
    return result.to(dtype)


def _operator(op):
    """Returns the name of a ReduceOp, and the factor of a PREMUL_SUM, else None."""
    for name in (*_BOX_OPERATORS, "AVG", "PRODUCT", "BAND", "BOR", "BXOR"):
        if op == getattr(dist.ReduceOp, name):
            return name, None
    state = op.__getstate__() if op == dist.ReduceOp.PREMUL_SUM else None
    if state is None:  # torch 1.13 does not give access to the factor
        raise InvalidArgument(f"the backend pbox does not know the reduction {op!r}")
    return "SUM", state[1]


def _flat(tensor):
    """Returns a tensor's elements, one after another: a view if they are contiguous."""
    if tensor.layout != torch.strided:
        raise InvalidArgument(f"a tensor of layout {tensor.layout} cannot be sent: pass "
                              "tensor.to_dense()")
    return _view(tensor.detach().resolve_conj().resolve_neg().contiguous())


def _view(tensor):
    """Returns the elements of a contiguous tensor. A tensor of one element may have any strides, so
    view() would keep one that is not 1."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _wire(flat):
    """Returns a flat tensor in a dtype that libpbox takes: bytes if the box lacks its dtype."""
    return flat if flat.dtype in _SUMMED else flat.view(torch.uint8)


class Plan:
    """Collects the `calls` of one or more operations, for Channel.start(), and what has to be done
    when they have ended, `finish`. `tensors` are those that both use."""

    def __init__(self, rank, world_size):
        self.calls = []
        self.tensors = []
        self._rank = rank
        self._world_size = world_size
        self._finishers = []  # the last one runs first

    @property
    def finish(self):
        return self._run_finishers if self._finishers else None

    def _run_finishers(self):
        for finisher in reversed(self._finishers):
            finisher()

    def finish_with(self, finisher):
        """Makes `finisher` run after those of the operations that are added later."""
        self._finishers.append(finisher)

    def _call(self, verb, source=None, target=None, **options):
        self.calls.append((verb, source, target, options))
        self.tensors += [tensor for tensor in (source, target) if tensor is not None]

    def _target(self, tensor, load=False):
        """Returns the flat tensor that receives a result: a view of `tensor`, or a copy that is
        written back at the end if a view is not possible. With `load` a copy has the values of
        `tensor`."""
        tensor = tensor.detach()
        self.tensors.append(tensor)
        if tensor.layout == torch.strided and (
                tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()):
            return _view(tensor)
        copy = _flat(tensor) if load else torch.empty(tensor.numel(), dtype=tensor.dtype,
                                                      device=tensor.device)
        self._finishers.append(lambda: _write_back(tensor, copy))
        return copy

    def barrier(self):
        self._call("barrier")

    def broadcast(self, tensor, root):
        flat = _wire(self._target(tensor, load=self._rank == root))
        self._call("broadcast", flat, flat, root=root)

    def all_reduce(self, tensor, op, **options):
        flat = self._target(tensor, load=True)
        self._reduce(flat, flat, op, **options)

    def reduce(self, tensor, op, root):
        """Costs what all_reduce costs; the other ranks drop the result."""
        if self._rank == root:
            self.all_reduce(tensor, op)
            return
        source = _flat(tensor)
        self._reduce(source, torch.empty_like(source), op)

    def reduce_scatter(self, output, source, op):
        """`source` has world_size times the elements of `output`. With a reduction or dtype that
        the box does not have, every rank receives everything."""
        self._reduce(_flat(source), self._target(output), op, scatter=True)

    def reduce_scatter_list(self, output, sources, op):
        """If the sizes differ, it costs what all_reduce of all of them costs."""
        together = torch.cat([_flat(source) for source in sources])
        sizes = [source.numel() for source in sources]
        if sizes[self._rank] != output.numel():
            raise InvalidArgument(
                f"reduce_scatter: the output has {output.numel()} elements, and this rank's input "
                f"{sizes[self._rank]}; the two numbers must be equal")
        if len(set(sizes)) == 1:
            self.reduce_scatter(output, together, op)
            return
        mine = together.split(sizes)[self._rank]
        target = self._target(output)
        self._finishers.append(lambda: target.copy_(mine))
        self._reduce(together, together, op)

    def all_gather(self, output, source):
        self._gather(_flat(source), self._target(output))

    def all_gather_list(self, outputs, source):
        """If the sizes differ, every rank sends as many elements as the largest has."""
        flat = _flat(source)
        sizes = [output.numel() for output in outputs]
        if len(sizes) != self._world_size or sizes[self._rank] != flat.numel():
            raise InvalidArgument(
                f"all_gather: outputs of {sizes} elements for {self._world_size} ranks; rank "
                f"{self._rank} gives {flat.numel()}. Each output must have the size of that rank's "
                "input")
        most = max(sizes)
        if flat.numel() < most:
            flat = torch.cat([flat, flat.new_zeros(most - flat.numel())])
        everything = flat.new_empty(self._world_size * most)
        self.tensors += outputs
        rows = everything.view(self._world_size, most)
        self._finishers.append(lambda: [
            _write_back(output.detach(), row[:size])
            for output, row, size in zip(outputs, rows, sizes)])
        self._gather(flat, everything)

    def gather(self, outputs, source, root):
        """Costs what all_gather costs; the other ranks drop the result."""
        if self._rank == root:
            self.all_gather_list(outputs, source)
            return
        flat = _flat(source)
        self._gather(flat, flat.new_empty(self._world_size * flat.numel()))

    def scatter(self, output, sources, root):
        """Costs a broadcast of all ranks' pieces."""
        if self._rank == root:
            together = torch.cat([_flat(source) for source in sources])
        else:
            together = torch.empty(self._world_size * output.numel(), dtype=output.dtype,
                                   device=output.device)
        mine = together.view(self._world_size, output.numel())[self._rank]
        target = self._target(output)
        self._finishers.append(lambda: target.copy_(mine))
        flat = _wire(together)
        self._call("broadcast", flat, flat, root=root)

    def all_to_all(self, outputs, inputs, splits):
        """`splits[i][j]`: elements that rank i sends to rank j. Costs an all_gather of the largest
        rank's input, world_size times the bytes that a direct exchange would take."""
        together = torch.cat([_flat(source) for source in inputs])
        most = max(sum(row) for row in splits)
        padded = torch.cat([together, together.new_zeros(most - together.numel())])
        everything = padded.new_empty(self._world_size * most)
        rows = everything.view(self._world_size, most)

        def distribute():
            for output, row, split in zip(outputs, rows, splits):
                first = sum(split[:self._rank])
                _write_back(output.detach(), row[first:first + split[self._rank]])

        self.tensors += outputs
        self._finishers.append(distribute)
        self._gather(padded, everything)

    def _gather(self, source, target):
        if source.dtype != target.dtype:
            raise InvalidArgument(f"all_gather: the output is {target.dtype}, the input "
                                  f"{source.dtype}; they must be of one dtype")
        self._call("all_gather", _wire(source), _wire(target))

    def _reduce(self, source, target, op, scatter=False, **options):
        """Reduces `source` of all ranks into `target`: all of it, or with `scatter` this rank's
        part."""
        name, factor = _operator(op)
        if source.dtype != target.dtype:
            raise InvalidArgument(f"a reduction's output is {target.dtype}, its input "
                                  f"{source.dtype}; they must be of one dtype")
        if source.is_complex() and name in ("SUM", "AVG"):
            source, target = (torch.view_as_real(flat).reshape(-1) for flat in (source, target))
        if factor is not None:
            factor = factor.to(source.device) if torch.is_tensor(factor) else factor
            source = (source * factor).to(source.dtype)
        verb = "reduce_scatter" if scatter else "all_reduce"
        if source.dtype not in _SUMMED or name not in (*_BOX_OPERATORS, "AVG"):
            self._reduce_here(source, target, name, scatter)
        elif name != "AVG":
            self._call(verb, source, target, op=_BOX_OPERATORS[name], **options)
        elif source.is_floating_point():
            self._call(verb, source, target, op="mean", **options)
        else:
            self._finishers.append(
                lambda: target.div_(self._world_size, rounding_mode="trunc"))
            self._call(verb, source, target, op="sum")

    def _reduce_here(self, source, target, name, scatter):
        """For reductions and dtypes that the box does not have: gathers everything, and each rank
        reduces in the order of the ranks. It costs world_size times the bytes of all_reduce."""
        try:
            _fold(name, source.new_zeros(2, 1))
        except (KeyError, RuntimeError) as error:
            raise InvalidArgument(
                f"the backend pbox cannot reduce {source.dtype} by {name}") from error
        everything = source.new_empty(self._world_size * source.numel())

        def reduce():
            rows = everything.view(self._world_size, source.numel())
            if scatter:
                rows = rows.view(self._world_size, self._world_size, target.numel())[:, self._rank]
            target.copy_(_fold(name, rows))

        self._finishers.append(reduce)
        self._gather(source, everything)


def _write_back(tensor, flat):
    tensor.copy_(flat.view(tensor.shape))

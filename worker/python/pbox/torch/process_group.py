"""The torch.distributed backend "pbox": collectives through a box."""

import datetime
import math
import os
import secrets
import threading
import weakref

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ..errors import InvalidArgument, PboxError, Timeout, Unavailable
from ._channel import Channel
from ._inner_backend import InnerBackend
from ._plan import Plan
from ._work import Together, Work

_ADVICE = ("The process group has left its job, because its operations and those of the other "
           "ranks can no longer be matched: destroy it and make a new one on all ranks")
_MILLISECONDS_MAX = 2 ** 32 - 1
_STARTS = "pbox/starts"  # key of the number of rank 0's starts with a store


class ProcessGroup(InnerBackend):
    """A process group whose ranks exchange data with a box, and with no other rank.

    Its job on the box is new at each start: rank 0 draws a random suffix and tells the others
    through the group's store. The constructor joins the job, so it returns when every rank has
    called it. Box, port and keys come from the environment, like those of pbox.Client.

    An operation fails at its deadline, which is the group's time-out, with an error that names the
    rank that is late. Any failure ends the job on this rank; later operations fail with the same
    error, and the other ranks with one that names this rank. The process survives, and new groups
    can be made. Point-to-point operations go through a Gloo group that is made for the first of
    them."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self._rank = rank
        self._size = size
        self._store = store
        self._gloo = None
        self._gloo_lock = threading.Lock()
        self._coalesced = threading.local()
        job = _agree_on_job(store, rank, timeout)
        milliseconds = min(math.ceil(timeout.total_seconds() * 1000), _MILLISECONDS_MAX)
        # Only this start knows the job's name, so no process can take a lost rank's place, and the
        # others do not wait for one.
        self._channel = Channel(timeout.total_seconds(), _ADVICE, job=job, rank=rank,
                                world_size=size, join_timeout_ms=milliseconds,
                                wait_timeout_ms=milliseconds, on_worker_lost="abort")
        # torch 1.13 destroys a group by dropping it. The thread that drops it may hold any lock, so
        # it cannot wait.
        weakref.finalize(self, self._channel.start_to_close)
        self._register_inner_backend(rank, size)

    def split_group(self, new_ranks, timeout=None, opts=None, group_name=None, group_desc=None,
                    device_types=None):
        """Makes a group of some of this group's ranks, for dist.split_group(). Returns None on the
        others, which need not call it. It joins a job of its own, like any group."""
        del opts, device_types  # no options; every group serves all devices
        ranks = sorted(new_ranks)
        if self._rank not in ranks:
            return None
        name = group_name or "split " + "-".join(map(str, ranks))
        group = ProcessGroup(dist.PrefixStore(f"{name}/", self._store), ranks.index(self._rank),
                             len(ranks),
                             timeout or datetime.timedelta(seconds=self._channel.timeout_s))
        group._set_group_name(name)
        group._set_group_desc(group_desc or "undefined")
        return group

    def get_group_store(self):
        """Returns the store that the group was made with."""
        return self._store

    # pylint: disable=invalid-name,missing-function-docstring; torch's names, torch's contracts
    def getBackendName(self):
        return "pbox"

    def getRank(self):
        return self._rank

    def getSize(self):
        return self._size

    def errored(self):
        """Returns the error that has ended the job on this rank, or None. It covers all operations
        that the device has passed, and those that a thread has waited for."""
        return self._channel.settled_error()

    def statistics(self):
        """Returns the counters of this rank's exchange with the box, like Client.statistics()."""
        return self._channel.client.statistics()

    def abort(self):
        """Leaves the job. Operations in flight, and later ones, fail."""
        self._channel.close(PboxError("the process group was aborted"))
        self._drop_gloo("abort")

    def shutdown(self):
        """Leaves the job, like abort(), when the group is destroyed."""
        self._channel.close()
        self._drop_gloo("shutdown")

    def set_timeout(self, timeout):
        """Sets the time that later operations may take."""
        self._channel.timeout_s = timeout.total_seconds()

    def _set_default_timeout(self, timeout):
        self.set_timeout(timeout)

    def _plan(self):
        return Plan(self._rank, self._size)

    def _start(self, plan, value, options=None, wait_count=1):
        """Starts a plan's collectives, and returns their Work. `value`: what its future returns."""
        timeout_s = options.timeout.total_seconds() if options is not None else 0
        operation = self._channel.start(plan, value=value,
                                        timeout_s=timeout_s if timeout_s > 0 else None)
        work = Work(operation, wait_count)
        if getattr(self._coalesced, "works", None) is not None:
            self._coalesced.works.append(work)
        return work

    def allreduce(self, tensors, opts=c10d.AllreduceOptions()):
        if not hasattr(opts, "reduceOp"):  # torch allows the reduction alone
            opts, opts.reduceOp = c10d.AllreduceOptions(), opts
        if tensors[0].is_sparse:
            return self._sparse_allreduce(tensors, opts)
        plan = self._plan()
        for tensor in tensors:
            plan.all_reduce(tensor, opts.reduceOp)
        return self._start(plan, tensors, opts, len(tensors))

    def allreduce_coalesced(self, tensors, opts=c10d.AllreduceCoalescedOptions()):
        return self.allreduce(tensors, opts)

    def _sparse_allreduce(self, tensors, opts):
        """Adds sparse tensors. The ranks' numbers of entries are exchanged first and waited for."""
        if opts.reduceOp != dist.ReduceOp.SUM:
            raise InvalidArgument("the backend pbox reduces sparse tensors by SUM only")
        tensor, = tensors
        own = tensor.coalesce()
        counts = [row[0] for row in self._exchange([own._nnz()], opts)]
        plan = self._plan()
        indices = [own.indices().new_empty(own.sparse_dim(), count) for count in counts]
        values = [own.values().new_empty((count, *own.values().shape[1:])) for count in counts]
        plan.finish_with(lambda: tensor.copy_(torch.sparse_coo_tensor(
            torch.cat(indices, 1), torch.cat(values), tensor.shape).coalesce()))
        plan.all_gather_list(indices, own.indices())
        plan.all_gather_list(values, own.values())
        return self._start(plan, tensors, opts)

    def _exchange(self, numbers, opts):
        """Returns the lists of small numbers of all ranks. It waits for them."""
        mine = torch.tensor(numbers, dtype=torch.int64)
        everything = torch.empty(self._size, len(numbers), dtype=torch.int64)
        plan = self._plan()
        plan.all_gather(everything, mine)
        timeout_s = opts.timeout.total_seconds()
        self._channel.start(plan, timeout_s=timeout_s if timeout_s > 0 else None).wait()
        return everything.tolist()

    def reduce(self, tensors, opts):
        plan = self._plan()
        plan.reduce(tensors[0], opts.reduceOp, opts.rootRank)
        return self._start(plan, tensors, opts)

    def reduce_scatter(self, output_tensors, input_tensors, opts=c10d.ReduceScatterOptions()):
        plan = self._plan()
        for output, sources in zip(output_tensors, input_tensors):
            plan.reduce_scatter_list(output, sources, opts.reduceOp)
        return self._start(plan, output_tensors, opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=c10d.ReduceScatterOptions()):
        plan = self._plan()
        for output, source in zip(outputs, inputs):
            plan.reduce_scatter(output, source, opts.reduceOp)
        return self._start(plan, outputs, opts, len(outputs))

    def reduce_scatter_single(self, output, source, opts=c10d.ReduceScatterOptions()):
        return self.reduce_scatter_single_coalesced([output], [source], opts)

    # torch up to 2.12 calls the same operations by these names.
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def allgather(self, output_tensors, input_tensors, opts=c10d.AllgatherOptions()):
        plan = self._plan()
        for outputs, source in zip(output_tensors, input_tensors):
            plan.all_gather_list(outputs, source)
        return self._start(plan, output_tensors, opts)

    def allgather_coalesced(self, output_lists, input_list, opts=c10d.AllgatherOptions()):
        # `output_lists` has a list for each rank; allgather() takes a list for each input.
        return self.allgather(list(zip(*output_lists)), input_list, opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts=c10d.AllgatherOptions()):
        plan = self._plan()
        for output, source in zip(outputs, inputs):
            plan.all_gather(output, source)
        return self._start(plan, outputs, opts, len(outputs))

    def all_gather_single(self, output, source, opts=c10d.AllgatherOptions()):
        return self.all_gather_single_coalesced([output], [source], opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def broadcast(self, tensors, opts):
        plan = self._plan()
        for tensor in tensors:
            plan.broadcast(tensor, opts.rootRank)
        return self._start(plan, tensors, opts)

    def gather(self, output_tensors, input_tensors, opts):
        plan = self._plan()
        outputs = output_tensors[0] if output_tensors else []
        plan.gather(outputs, input_tensors[0], opts.rootRank)
        return self._start(plan, outputs, opts)

    def scatter(self, output_tensors, input_tensors, opts):
        plan = self._plan()
        plan.scatter(output_tensors[0], input_tensors[0] if input_tensors else [], opts.rootRank)
        return self._start(plan, output_tensors, opts)

    def alltoall(self, output_tensors, input_tensors, opts=c10d.AllToAllOptions()):
        """The ranks' sizes are exchanged first, and waited for."""
        for name, tensors in (("outputs", output_tensors), ("inputs", input_tensors)):
            if len(tensors) != self._size:
                raise InvalidArgument(f"all_to_all: there are {len(tensors)} {name} for "
                                      f"{self._size} ranks; there must be one for each rank")
        splits = self._exchange([tensor.numel() for tensor in input_tensors], opts)
        for rank, output in enumerate(output_tensors):
            if splits[rank][self._rank] != output.numel():
                raise InvalidArgument(
                    f"all_to_all: rank {rank} sends {splits[rank][self._rank]} elements to rank "
                    f"{self._rank}, whose output has room for {output.numel()}; the two sizes must "
                    "be equal")
        plan = self._plan()
        plan.all_to_all(output_tensors, input_tensors, splits)
        return self._start(plan, output_tensors, opts)

    def all_to_all_single(self, output, source, output_splits, input_splits,
                          opts=c10d.AllToAllOptions()):
        return self.alltoall(self._pieces("output", output, output_splits),
                             self._pieces("input", source, input_splits), opts)

    def _pieces(self, name, tensor, splits):
        """Returns the pieces of a tensor for all_to_all: `splits` rows each, or equally many."""
        if not splits and len(tensor) % self._size != 0:
            raise InvalidArgument(
                f"all_to_all_single: {len(tensor)} rows of the {name} cannot be split equally over "
                f"{self._size} ranks; give the sizes of all pieces")
        return tensor.split(splits or [len(tensor) // self._size] * self._size)

    alltoall_base = all_to_all_single

    def barrier(self, opts=c10d.BarrierOptions()):
        plan = self._plan()
        plan.barrier()
        return self._start(plan, [], opts)

    def _start_coalescing(self, *_):
        self._coalesced.works = []

    def _end_coalescing(self, *_):
        works, self._coalesced.works = self._coalesced.works, None
        return Together(works)

    def send(self, tensors, destination, tag):
        return self._point_to_point().send(tensors, destination, tag)

    def recv(self, tensors, source, tag):
        return self._point_to_point().recv(tensors, source, tag)

    def recv_anysource(self, tensors, tag):
        return self._point_to_point().recv_anysource(tensors, tag)

    def _point_to_point(self):
        """Returns the Gloo group, which connects the ranks to one another. A box has no verb for
        two ranks."""
        with self._gloo_lock:
            if self._gloo is None:
                store = dist.PrefixStore("pbox/point-to-point", self._store)
                try:
                    self._gloo = _make_gloo(store, self._rank, self._size,
                                            datetime.timedelta(seconds=self._channel.timeout_s))
                except RuntimeError as error:
                    raise Unavailable(
                        "send and recv need a Gloo group, and the ranks cannot connect to one "
                        f"another: {error}. GLOO_SOCKET_IFNAME has to name an interface by which "
                        "they reach one another. With an older torch every rank of the group has "
                        "to call send or recv") from error
            return self._gloo

    def _drop_gloo(self, how):
        with self._gloo_lock:
            gloo, self._gloo = self._gloo, None
        if gloo is not None and hasattr(gloo, how):
            getattr(gloo, how)()


_HAS_BACKENDS = hasattr(dist.ProcessGroup, "_register_backend")  # torch 2


def _make_gloo(store, rank, size, timeout):
    """Returns a Gloo group that connects two ranks when they first exchange something, or, with an
    older torch, all at once."""
    try:
        device = dist.ProcessGroupGloo.create_default_device(lazy_init=True)
    except TypeError:
        return dist.ProcessGroupGloo(store, rank, size, timeout)
    options = dist.ProcessGroupGloo._Options()
    options._devices = [device]
    options._timeout = timeout
    return dist.ProcessGroupGloo(store, rank, size, options)


def _job_key(start):
    return f"pbox/job/{start}"


def _agree_on_job(store, rank, timeout):
    """Returns the name of a new job, the same on all ranks. Rank 0 chooses it, and numbers its
    starts, because a store may outlive a group. Some ranks may have started more often than others.
    So each rank takes the newest start of rank 0 that it has not taken before, and waits if there
    is none."""
    if rank == 0:
        name = f"{os.environ.get('PBOX_JOB') or 'torch'}-{secrets.token_hex(8)}"
        store.set(_job_key(store.add(_STARTS, 1)), name)
        return name
    taken = f"pbox/taken/{rank}"
    last = store.add(taken, 0)
    try:
        store.wait([_job_key(last + 1)], timeout)
        start = store.add(_STARTS, 0)
        store.wait([_job_key(start)], timeout)
    except RuntimeError as error:
        raise Timeout(
            f"rank 0 has not published the name of the group's job (key {_job_key(last + 1)} of "
            f"the group's store) within {timeout.total_seconds():.0f} s: start rank 0, or find out "
            f"why it has ended. If only this rank was restarted, restart all. {error}") from error
    store.add(taken, start - last)
    return store.get(_job_key(start)).decode()


def create(store, rank, size, timeout):
    """Makes a group for init_process_group() and new_group()."""
    return ProcessGroup(store, rank, size, timeout or datetime.timedelta(minutes=30))


def register():
    """Makes the backend "pbox" known to torch.distributed."""
    if "PBOX" in dist.Backend._plugins:
        return
    devices = {"devices": ["cpu", "cuda"]} if _HAS_BACKENDS else {}
    dist.Backend.register_backend("pbox", create, **devices)

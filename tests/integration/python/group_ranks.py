"""The ranks of test_process_group.py. Each function runs in one process per rank."""

import contextlib
import datetime
import os
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import pbox
import pbox.torch
from support import gradients_of, make_model, shard_loss, wait_for_file

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
SIZES = (0, 1, 1001)


def start(options, store, timeout_s=60):
    """Makes the default group with the backend pbox. Creates the file `store`."""
    os.environ["PBOX_BOX"] = options["box"]
    os.environ["PBOX_JOB"] = options["job"]
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("pbox", init_method=f"file://{store}", rank=options["rank"],
                            world_size=options["world_size"],
                            timeout=datetime.timedelta(seconds=timeout_s))


# A Gloo group of torch 2.6 that is freed waits for its threads and holds Python's lock, which they
# may need to free tensors. So groups over gloo stay until the process ends.
_gloo_groups = []


@contextlib.contextmanager
def groups(options, store):
    """Yields a list of the default group and one over gloo with the same ranks."""
    start(options, store)
    _gloo_groups.append(dist.new_group(backend="gloo"))
    yield [dist.group.WORLD, _gloo_groups[-1]]
    dist.destroy_process_group()


def integers(size, dtype, rank, seed=0):
    """Returns values that every dtype holds exactly, also the sum of a few. No zeros."""
    generator = torch.Generator().manual_seed(10 * seed + rank)
    return torch.randint(1, 6, (size,), generator=generator).to(dtype)


def with_gaps(tensor):
    """Returns a tensor of the same values that is not contiguous."""
    wide = torch.zeros(tensor.numel(), 3, dtype=tensor.dtype)
    wide[:, 1] = tensor
    return wide[:, 1]


def _expect(differences, what, value, wanted):
    if value.dtype != wanted.dtype or not torch.equal(value, wanted):
        differences.append(f"{what}: {value[:5].tolist()} instead of {wanted[:5].tolist()}")


def _operators(dtype):
    operators = ["SUM", "MIN", "MAX", "PRODUCT"]
    return operators + (["AVG"] if dtype.is_floating_point else ["BAND", "BOR", "BXOR"])


def _combined(name, all_ranks):
    """The oracle of a reduction, in 64 bits: exact for the values of integers()."""
    wide = torch.stack(all_ranks).to(
        torch.float64 if all_ranks[0].is_floating_point() else torch.int64)
    if name in ("SUM", "AVG"):
        result = wide.sum(0) if name == "SUM" else wide.mean(0)
    elif name in ("MIN", "MAX"):
        result = wide.amin(0) if name == "MIN" else wide.amax(0)
    elif name == "PRODUCT":
        result = wide.prod(0)
    else:
        function = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or,
                    "BXOR": torch.bitwise_xor}[name]
        result = wide[0]
        for other in wide[1:]:
            result = function(result, other)
    return result.to(all_ranks[0].dtype)


def reductions(options, store):
    """Returns what differs from the oracle: all_reduce, reduce and both forms of reduce_scatter
    for every dtype, reduction and size, with and without gaps in memory."""
    differences = []
    start(options, store)
    for dtype in (*FLOATS, *INTEGERS):
        for name in _operators(dtype):
            for size in SIZES:
                _check_reductions(differences, name, size, dtype, options)
    _check_reductions(differences, "SUM", 3000001, torch.float32, options)
    dist.destroy_process_group()
    return differences


def _check_reductions(differences, name, size, dtype, options):
    what = f"{name} of {size} {dtype}"
    op = getattr(dist.ReduceOp, name)
    rank, ranks = options["rank"], range(options["world_size"])

    def values(other, seed=0):  # multiples of the world size, so that a mean is exact
        return integers(size, dtype, other, seed) * (len(ranks) if name == "AVG" else 1)

    wanted = _combined(name, [values(other) for other in ranks])
    for lay in (torch.clone, with_gaps):
        tensor = lay(values(rank))
        dist.all_reduce(tensor, op=op)
        _expect(differences, f"all_reduce, {what}", tensor, wanted)
    mine = values(rank)
    dist.reduce(mine, 1, op=op)
    if rank == 1:
        _expect(differences, f"reduce, {what}", mine, wanted)
    wanted = _combined(name, [values(other, rank) for other in ranks])
    pieces = [values(rank, piece) for piece in ranks]
    output = with_gaps(torch.zeros(size, dtype=dtype))
    dist.reduce_scatter(output, pieces, op=op)
    _expect(differences, f"reduce_scatter, {what}", output, wanted)
    output = torch.zeros(size, dtype=dtype)
    dist.reduce_scatter_tensor(output, torch.cat(pieces), op=op)
    _expect(differences, f"reduce_scatter_tensor, {what}", output, wanted)


def _moves(group, rank, size, dtype, lay, root=1):
    """Returns the results of every verb that moves elements, with tensors that `lay` lays out."""
    ranks = range(dist.get_world_size(group))
    mine = integers(size, dtype, rank)
    results = {}
    lists = [lay(torch.zeros(size, dtype=dtype)) for _ in ranks]
    dist.all_gather(lists, lay(mine), group=group)
    results["all_gather"] = torch.cat(lists)
    results["broadcast"] = lay(mine)
    dist.broadcast(results["broadcast"], root, group=group)
    lists = [torch.zeros(size, dtype=dtype) for _ in ranks] if rank == root else None
    dist.gather(mine, lists, root, group=group)
    results["gather"] = torch.cat(lists) if lists else mine
    results["scatter"] = torch.zeros(size, dtype=dtype)
    pieces = [integers(size, dtype, rank, piece) for piece in ranks]
    dist.scatter(results["scatter"], pieces if rank == root else None, root, group=group)
    return results


def moves(options, store):
    """Returns what differs from gloo, or from an oracle where gloo has no such verb."""
    differences = []
    rank, world_size = options["rank"], options["world_size"]
    with groups(options, store) as (ours, gloo):
        for dtype in (*FLOATS, *INTEGERS, torch.bool, torch.complex64):
            wanted = {}
            for size in reversed(SIZES):
                # gloo of torch 1.13 has no bfloat16, int16, bool or complex
                through = ({torch.bfloat16: torch.float32, torch.int16: torch.int32,
                            torch.bool: torch.uint8, torch.complex64: torch.float64}).get(
                                dtype, dtype)
                if size > 0:
                    wanted = _moves(gloo, rank, size, through, torch.clone)
                else:  # gloo would divide by zero
                    wanted = dict.fromkeys(wanted, torch.zeros(0, dtype=dtype))
                for verb, value in _moves(ours, rank, size, dtype, with_gaps).items():
                    if dtype == torch.bool:
                        wanted[verb] = wanted[verb] != 0
                    _expect(differences, f"{verb} of {size} {dtype}", value,
                            wanted[verb].to(dtype))
        _check_all_to_all(differences, rank, world_size)
        _check_uneven(differences, rank, world_size)
        _check_objects(differences, rank, world_size)
    return differences


def _check_all_to_all(differences, rank, world_size):
    even = torch.arange(2 * world_size) + 100 * rank
    output = torch.zeros(2 * world_size, dtype=torch.int64)
    dist.all_to_all_single(output, even)
    _expect(differences, "all_to_all_single", output, torch.cat(
        [torch.arange(2 * rank, 2 * rank + 2) + 100 * other for other in range(world_size)]))
    # Rank i sends i + j rows of two to rank j.
    sent = [rank + other for other in range(world_size)]
    output = torch.zeros(sum(sent), 2)
    dist.all_to_all_single(output, torch.full((sum(sent), 2), float(rank)), sent, sent)
    _expect(differences, "all_to_all_single with splits", output, torch.cat(
        [torch.full((rank + other, 2), float(other)) for other in range(world_size)]))
    outputs = [torch.zeros(count) for count in sent]
    dist.all_to_all(outputs, [torch.full((count,), float(rank)) for count in sent])
    _expect(differences, "all_to_all", torch.cat(outputs), torch.cat(
        [torch.full((rank + other,), float(other)) for other in range(world_size)]))


def _check_uneven(differences, rank, world_size):
    outputs = [torch.zeros(other + 1) for other in range(world_size)]
    dist.all_gather(outputs, torch.full((rank + 1,), float(rank)))
    for other, output in enumerate(outputs):
        _expect(differences, "uneven all_gather", output, torch.full((other + 1,), float(other)))
    output = torch.zeros(rank + 1)
    dist.reduce_scatter(output, [torch.full((other + 1,), rank + 1.0)
                                 for other in range(world_size)])
    _expect(differences, "uneven reduce_scatter", output,
            torch.full((rank + 1,), world_size * (world_size + 1) / 2))


def _check_objects(differences, rank, world_size):
    objects = [None] * world_size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    if [entry["rank"] for entry in objects] != list(range(world_size)):
        differences.append(f"all_gather_object: {objects}")
    mine = [["from", rank]]
    dist.broadcast_object_list(mine, src=world_size - 1)
    if mine != [["from", world_size - 1]]:
        differences.append(f"broadcast_object_list: {mine}")


class _Sparse(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(50, 4, sparse=True)
        self.out = torch.nn.Linear(4, 2)
        self.unused = torch.nn.Linear(3, 3)

    def forward(self, inputs):
        return self.out(self.words(inputs)).sum()


def trained(options, store):
    """Returns the gradients of DDP over gloo and over the box: as it is, with comm hooks, with
    sparse gradients and unused parameters."""
    collected = {}
    rank = options["rank"]
    with groups(options, store) as both:
        for name in ("plain", "fp16", "power"):
            collected[name] = [_gradients(group, name, rank) for group in both]
        collected["sparse"] = [_sparse_gradients(group, rank) for group in both]
    return collected


def _gradients(group, name, rank):
    torch.manual_seed(5)
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.001, process_group=group)
    if name == "fp16":
        model.register_comm_hook(group, default_hooks.fp16_compress_hook)
    if name == "power":
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2,
                                            start_powerSGD_iter=2, min_compression_rate=0.5)
        is_boxed = group is dist.group.WORLD
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook if is_boxed
                                 else _one_bucket_at_a_time)
    steps = []
    for step in range(5):
        model.zero_grad()
        shard_loss(model, step, rank).backward()
        steps.append(gradients_of(model))
    return steps


def _one_bucket_at_a_time(state, bucket):
    """PowerSGD over gloo. The continuations of several buckets would start operations in an order
    that differs between ranks, and gloo would hang."""
    future = powerSGD_hook.powerSGD_hook(state, bucket)
    future.wait()
    return future


def _sparse_gradients(group, rank):
    model = DistributedDataParallel(_Sparse(), process_group=group, find_unused_parameters=True)
    model(torch.tensor([[1, 2, 3], [rank, 7, 7]])).backward()
    return [parameter.grad.to_dense().numpy().copy() for parameter in model.parameters()
            if parameter.grad is not None]


def works_and_futures(options, store):
    """Uses the results of asynchronous calls: by wait(), by futures and by their continuations."""
    start(options, store)
    tensors = [torch.full((size,), 1.0 + options["rank"]) for size in (10, 100000, 3)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    doubled = works[1].get_future().then(lambda future: future.value()[0] * 2)
    # A continuation that waits for another operation, as PowerSGD's do.
    nested = works[0].get_future().then(
        lambda future: dist.all_reduce(future.value()[0] * 10, async_op=True).get_future().wait())
    for work in works:
        work.wait(datetime.timedelta(seconds=30))
    sent = torch.zeros(2)
    if options["rank"] == 0:
        dist.send(torch.ones(2), 1)
    else:
        dist.recv(sent, 0)
    returned = ([tensor[0].item() for tensor in tensors], doubled.wait()[0].item(),
                nested.wait()[0][0].item(), works[2].is_success(), sent.tolist())
    dist.destroy_process_group()
    return returned


def late_continuations(options, store):
    """Registers continuations that call a collective. On rank 0 the futures have ended by then."""
    start(options, store, timeout_s=10)
    ones = torch.ones(3)

    def tenfold(tensor):
        again = dist.all_reduce(tensor * 10, async_op=True)
        return again.get_future().wait()[0]

    def pause():
        if options["rank"] == 0:
            time.sleep(0.3)

    sums = []
    for _ in range(5):
        future = dist.all_reduce(ones.clone(), async_op=True).get_future()
        pause()
        chained = future.then(lambda ended: tenfold(ended.value()[0]))
        pause()
        sums.append(chained.then(lambda ended: tenfold(ended.value())))
        dist.all_reduce(ones.clone())  # while continuations run

    returned = [future.wait()[0].item() for future in sums]
    dist.destroy_process_group()
    return returned


def several_groups(options, store):
    """Uses groups of some ranks, from a thread for each, at the same time."""
    start(options, store)
    rank = options["rank"]
    pairs = [dist.new_group(members) for members in ((0, 1), (1, 2), (0, 2))]
    sums = {}

    def use(index):
        for step in range(20):
            tensor = torch.full((1000,), float(10 ** rank + step))
            dist.all_reduce(tensor, group=pairs[index])
            sums.setdefault(index, []).append(tensor[999].item())

    mine = [index for index, members in enumerate(((0, 1), (1, 2), (0, 2))) if rank in members]
    threads = [threading.Thread(target=use, args=(index,)) for index in mine]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dist.destroy_process_group(pairs[0] if 0 in mine else dist.group.WORLD)
    return sums


def _connections(box):
    """Returns how many TCP connections this process has, other than those to the box."""
    own = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the list itself
            own.add(os.stat(f"/proc/self/fd/{number}").st_ino)
    box_port = int(box.rpartition(":")[2])
    count = 0
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with open(table, encoding="ascii") as lines:
            for _, _, remote, state, *others in [line.split() for line in lines][1:]:
                established = state == "01" and int(others[5]) in own
                count += established and int(remote.rpartition(":")[2], 16) != box_port
    return count


def connections(options, store):
    """Returns how many TCP connections to peers other than the box a rank has, with the group and
    then with gloo's. The store is a file."""
    start(options, store)
    dist.all_reduce(torch.ones(3))
    ours = _connections(options["box"])
    dist.new_group(backend="gloo")
    with_gloo = _connections(options["box"])
    dist.barrier()  # A rank that left now would close connections that others still count.
    dist.destroy_process_group()
    return ours, with_gloo


def many(options, store):
    """Returns a sum over many ranks, and the number of TCP connections to peers other than the
    box."""
    start(options, store)
    tensor = torch.full((1000,), options["rank"] + 1.0)
    dist.all_reduce(tensor)
    others = _connections(options["box"])
    dist.barrier()
    dist.destroy_process_group()
    return tensor[999].item(), others


def _fails(call):
    """Returns the kind and the text of the error that a call raises."""
    try:
        call()
    except RuntimeError as error:
        return type(error).__name__, str(error)
    return None


def different_operations(options, store):
    """The ranks call different collectives, and then make a new group."""
    start(options, store, timeout_s=20)
    rank = options["rank"]
    dist.barrier()
    first = _fails(lambda: dist.all_reduce(torch.ones(7 + rank)))
    second = _fails(lambda: dist.all_reduce(torch.ones(7)))
    dist.destroy_process_group()
    start(options, f"{store}-again")
    tensor = torch.ones(5)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return first, second, tensor.tolist()


def skipped_operation(options, store, seen):
    """Rank 1 does not call the second operation."""
    start(options, store, timeout_s=5)
    dist.barrier()
    if options["rank"] == 1:
        wait_for_file(seen)
        # The all_reduce may succeed, because rank 0 sent its part of it before it left.
        return _fails(lambda: [dist.all_reduce(torch.ones(7)), dist.barrier()])
    work = dist.all_reduce(torch.ones(7), async_op=True)
    early = _fails(lambda: work.wait(datetime.timedelta(seconds=0.2)))
    first = _fails(work.wait)
    future = _fails(work.get_future().wait)
    with open(seen, "wb"):
        return early, first, future


def until_a_rank_dies(options, store, ready):
    """Rank 1 is killed while the others wait for it."""
    start(options, store)
    dist.barrier()
    with open(f"{ready}.{options['rank']}", "wb"):
        pass
    if options["rank"] == 1:
        threading.Event().wait()
    first = _fails(dist.barrier)
    return first, _fails(lambda: dist.all_reduce(torch.ones(7)))


def aborted(options, store, done):
    """A thread of rank 0 aborts the group while another waits for an operation."""
    start(options, store)
    group = dist.group.WORLD
    if options["rank"] == 1:
        wait_for_file(done)
        # The first barrier may succeed, because rank 0 may have sent its part before it left.
        return _fails(lambda: [dist.barrier(), dist.barrier()])
    work = dist.barrier(async_op=True)
    aborter = threading.Thread(target=group.abort)
    aborter.start()
    failed = _fails(work.wait)
    aborter.join()
    with open(done, "wb"):
        return failed, _fails(dist.barrier), str(group.errored())


def refused(options, store):
    """Returns the errors of calls that the backend refuses; the group is usable afterwards."""
    start(options, store)
    factor = dist._make_nccl_premul_sum(2.0)  # pylint: disable=protected-access
    errors = [
        _fails(lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND)),
        _fails(lambda: dist.all_gather([torch.zeros(2)], torch.zeros(3))),
        _fails(lambda: dist.all_to_all_single(torch.zeros(5), torch.zeros(4))),
        _fails(lambda: dist.all_to_all_single(torch.zeros(4), torch.zeros(5))),
        _fails(lambda: dist.all_to_all([torch.zeros(2)] * 2, [torch.zeros(2)] * 3))]
    if torch.__version__ < "2":
        errors.append(_fails(lambda: dist.all_reduce(torch.ones(2), op=factor)))
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return errors, tensor.tolist()


def without_a_first_rank(options, store):
    if options["rank"] == 0:
        return None
    return _fails(lambda: start(options, store, timeout_s=1))


def jobs_of_two_starts(options, store):
    """Makes the group twice with the same store."""
    os.environ["PBOX_BOX"] = options["box"]
    os.environ["PBOX_JOB"] = options["job"]
    names = []
    shared = dist.FileStore(store, options["world_size"])
    for _ in range(2):
        group = pbox.torch.ProcessGroup(shared, options["rank"], options["world_size"],
                                        datetime.timedelta(seconds=30))
        group.barrier().wait()
        names.append(shared.get(f"pbox/job/{len(names) + 1}").decode())
        group.shutdown()
    return names

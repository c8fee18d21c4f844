"""The ranks of test_on_gpu.py: two processes on one CUDA device. Each function runs in one process
per rank. Some take `device`, and run on the CPU over gloo as well."""

import json
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import pbox.torch
from sharded_ranks import _model, _train, start
from support import wait_for_file

ELEMENTS = 16 << 20  # float32: 64 MiB, 16 slices


def _on(device, model):
    """Makes the model move its inputs to the device. Returns the model."""
    model.register_forward_pre_hook(lambda _, inputs: tuple(each.to(device) for each in inputs))
    return model


def _host(tensors):
    return [tensor.detach().cpu() for tensor in tensors]


def _local(model):
    return _host(model.parameters())


def _full(model):
    return _host(parameter.full_tensor() for parameter in model.parameters())


def trained(options, store, device):
    """Returns the weights after each step: over the backend pbox on "cuda", over gloo on "cpu"."""
    start(options, store, "gloo" if device == "cpu" else "pbox")
    rank, ranks = options["rank"], options["world_size"]
    ddp = DistributedDataParallel(_model().to(device), bucket_cap_mb=0.0001)
    results = {"DDP": _train(_on(device, ddp), rank, _local)}
    sharded = _model().to(device)
    mesh = init_device_mesh(device, (ranks,))
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer, mesh=mesh)
    results["FSDP2"] = _train(_on(device, sharded), rank, _full)
    dist.destroy_process_group()
    return results


def hook_and_optimizer(options, store, device):
    """Returns the weights after each step with the hook, and after all steps with the optimizer."""
    start(options, store, "gloo")
    rank = options["rank"]
    ddp = DistributedDataParallel(_model().to(device), bucket_cap_mb=0.0001)
    with pbox.torch.attach(ddp, **{**options, "job": options["job"] + "-hook"}):
        results = {"hook": _train(_on(device, ddp), rank, _local)}
    model = _model().to(device)
    local = torch.optim.SGD(model.parameters(), lr=0.5)
    with pbox.torch.DistributedOptimizer(local, model, **options) as optimizer:
        for step in range(3):
            generator = torch.Generator().manual_seed(10 * step + rank)
            inputs = torch.randint(-2, 3, (4, 8), generator=generator).float()
            model(inputs.to(device)).sum().backward()
            optimizer.step()
        optimizer.synchronize()
        results["optimizer"] = [tensor.numpy() for tensor in _local(model)]
    dist.destroy_process_group()
    return results


def _values(size, dtype, rank):
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(1, 6, (size,), generator=generator).to(dtype)


def verbs(options, store):
    """Returns what differs from the oracle."""
    start(options, store, "pbox")
    rank, ranks = options["rank"], range(options["world_size"])
    differences = []

    def expect(what, value, wanted):
        if value.device.type != "cuda" or not torch.equal(value.cpu(), wanted):
            differences.append(f"{what}: {value[:5].tolist()} instead of {wanted[:5].tolist()}")

    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64,
                  torch.int32, torch.uint8, torch.int8):
        for size in (0, 1, 1001, 2500001):
            what = f"of {size} {dtype}"
            all_values = [_values(size, dtype, other) for other in ranks]
            total = sum(all_values[1:], all_values[0])
            mine = all_values[rank].cuda()
            tensor = mine.clone()
            dist.all_reduce(tensor)
            expect(f"all_reduce {what}", tensor, total)
            wide = torch.zeros(size, 3, dtype=dtype, device="cuda")
            wide[:, 1] = mine
            dist.all_reduce(wide[:, 1], op=dist.ReduceOp.MAX)
            expect(f"all_reduce with gaps {what}", wide[:, 1],
                   torch.stack(all_values).amax(0) if size > 0 else total)
            gathered = mine.new_zeros(size * len(ranks))
            dist.all_gather_into_tensor(gathered, mine)
            expect(f"all_gather {what}", gathered, torch.cat(all_values))
            scattered = torch.zeros_like(mine)
            dist.reduce_scatter_tensor(scattered, mine.repeat(len(ranks)))
            expect(f"reduce_scatter {what}", scattered, total)
            dist.broadcast(tensor.copy_(mine), 1)
            expect(f"broadcast {what}", tensor, all_values[1])
            exchanged = mine.new_zeros(len(ranks))
            dist.all_to_all_single(exchanged, mine.new_full((len(ranks),), rank + 1))
            expect(f"all_to_all {what}", exchanged,
                   torch.tensor([other + 1 for other in ranks], dtype=dtype))
    dist.destroy_process_group()
    return differences


def memory_is_not_used_early(options, store):
    """Drops tensors whose copies are under way, and makes the allocator reuse their memory. Returns
    whether all results were right."""
    start(options, store, "pbox")
    kept, works = [], []
    for index in range(50):
        tensor = torch.full((1 << 18,), float(index + options["rank"]), device="cuda")
        result = tensor.new_empty(2 << 18)
        works.append(dist.all_gather_into_tensor(result, tensor, async_op=True))
        kept.append(result)
        del tensor
        torch.full((1 << 18,), -1.0, device="cuda")
    for work in works:
        work.wait()
    right = all(result[0].item() == index and result[-1].item() == index + 1
                for index, result in enumerate(kept))
    dist.destroy_process_group()
    return right


def waits(options, store, called):
    """Rank 1 joins the operation only after rank 0's wait() has returned."""
    start(options, store, "pbox")
    tensor = torch.full((ELEMENTS,), 1.0 + options["rank"], device="cuda")
    dist.all_reduce(tensor.clone())
    torch.cuda.current_stream().synchronize()
    if options["rank"] == 1:
        wait_for_file(called)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    completed = work.is_completed()
    with open(called if options["rank"] == 0 else f"{called}.1", "wb"):
        pass
    values = tensor[0].item(), tensor[-1].item()
    dist.destroy_process_group()
    return completed, values


def lost_rank(options, store):
    start(options, store, "pbox")
    dist.all_reduce(torch.ones(3, device="cuda"))
    if options["rank"] == 1:
        torch.cuda.current_stream().synchronize()
        dist.group.WORLD.abort()
        return None
    tensor = torch.ones(1001, device="cuda")
    dist.all_reduce(tensor)
    is_nan = torch.isnan(tensor).all().item()
    try:
        dist.all_reduce(tensor)
    except pbox.WorkerLost as error:
        return is_nan, str(error)
    return is_nan, "no error"


def _overlap_us(some, others):
    """Returns for how many microseconds events of both lists overlap. Events: (begin, end)."""
    return sum(max(0.0, min(end, other_end) - max(begin, other_begin))
               for begin, end in some for other_begin, other_end in others)


def _layers():
    return torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8))).cuda()


def traced(options, store, path):
    """Traces an all_reduce of 64 MiB while the device computes, and a step of DDP and of FSDP2.
    Returns for each how many microseconds the copies took and overlapped, their kinds, and the
    number of device synchronizations."""
    start(options, store, "pbox")
    tensor = torch.ones(ELEMENTS, device="cuda")
    matrix = torch.ones(2048, 2048, device="cuda")
    ddp = DistributedDataParallel(_layers(), bucket_cap_mb=16)
    sharded = _layers()
    for layer in (*sharded, sharded):
        fully_shard(layer)
    inputs = torch.ones(512, 2048, device="cuda")

    def all_reduce():
        work = dist.all_reduce(tensor, async_op=True)
        for _ in range(200):
            torch.mm(matrix, matrix)
        work.wait()

    results = {}
    for name, step in (("all_reduce", all_reduce),
                       ("DDP", lambda: ddp(inputs).sum().backward()),
                       ("FSDP2", lambda: sharded(inputs).sum().backward())):
        for _ in range(2):  # pins memory; DDP rebuilds its buckets
            step()
        torch.cuda.current_stream().synchronize()
        dist.barrier()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU,
                                                torch.profiler.ProfilerActivity.CUDA]) as profile:
            step()
            torch.cuda.current_stream().synchronize()
        trace = f"{path}-{name}-{options['rank']}.json"
        profile.export_chrome_trace(trace)
        results[name] = _read_trace(trace)
    dist.destroy_process_group()
    return results


def _read_trace(path):
    with open(path, encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]

    def spans(category, text=""):
        return [(event["ts"], event["ts"] + event["dur"]) for event in events
                if event.get("cat") == category and text in event["name"]]

    out, back = spans("gpu_memcpy", "DtoH"), spans("gpu_memcpy", "HtoD")
    kernels = spans("kernel")
    return {
        "out_us": sum(end - begin for begin, end in out),
        "back_us": sum(end - begin for begin, end in back),
        # From the first copy back to the last copy out, both directions are under way.
        "pipelined_us": max((end for _, end in out), default=0.0) - min(
            (begin for begin, _ in back), default=0.0),
        "copies_during_kernels_us": _overlap_us(out + back, kernels),
        "kinds": sorted({event["name"] for event in events if event.get("cat") == "gpu_memcpy"}),
        "device_synchronizations": sum(
            "cudaDeviceSynchronize" in event["name"] for event in events)}


def timed(options, store):
    """Returns the median seconds of 10 all_reduces of 64 MiB, by the tensor's device. Tensors on
    the GPU and in host memory take turns."""
    start(options, store, "pbox")
    seconds = {"cuda": [], "cpu": []}
    tensors = {device: torch.ones(ELEMENTS, device=device) for device in seconds}
    for _ in range(11):
        for device, tensor in tensors.items():
            dist.barrier()
            begun = time.monotonic()
            dist.all_reduce(tensor)
            if device == "cuda":
                torch.cuda.current_stream().synchronize()
            seconds[device].append(time.monotonic() - begun)
    dist.destroy_process_group()
    return {device: sorted(times[1:])[5] for device, times in seconds.items()}


def set_device(options, function, *arguments):
    """Runs the function as a rank on device 0. Fails if a CUDA error was left behind."""
    torch.cuda.set_device(0)
    torch.cuda.memory.set_per_process_memory_fraction(0.4)
    result = function(options, *arguments)
    torch.cuda.current_stream().synchronize()
    return result

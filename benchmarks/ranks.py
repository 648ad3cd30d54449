"""What benchmarks over several GPUs share: NCCL beside a world, cases that may fail or hang, and timing that takes the slowest rank."""

import os
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from random import Random

import ahead
import protocol
import torch
import torch.distributed as dist

from pknumba import World

#: Calls in a row between two events.
CALLS = 10
#: Seconds after which NCCL gives a collective up, and ends the process: nothing here takes as long.
PATIENCE = 120
#: Microseconds that the calls in a row of one variant take at most, and the fewest rounds, where time is short.
BATCH, LEAST = 30_000, 5


def connect(world):
    """torch.distributed over NCCL with the world's ranks, on this machine only. NVLink multicast stays off."""
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    port = 20000 + sum(world.allgather(os.getpid())) % 20000
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=world.rank, world_size=world.size,
                            device_id=torch.device("cuda", world.device), timeout=timedelta(seconds=PATIENCE))


def own_gpus(world):
    """Whether every rank has a GPU of its own, which NCCL demands; rank 0 says so where they have not."""
    apart = len(set(world.allgather(world.device))) == world.size
    if not apart and world.rank == 0:
        print("ranks share a GPU, which NCCL does not allow. Start one rank for each GPU.", flush=True)
    return apart


def beside_nccl(run, kernels=()):
    """The exit status of a benchmark: ``run(world)`` says whether results were right, on a world of MPI ranks beside NCCL.

    Args:
        kernels: what ``ahead`` compiles meanwhile.
    """
    compiled = ahead.start(kernels)
    world = World.mpi(executor="gpu")
    if not own_gpus(world):
        return 2
    torch.cuda.set_device(world.device)
    connect(world)
    compiled()
    world.barrier()
    right = run(world)
    dist.destroy_process_group()
    world.close()
    return 0 if right else 1


def worst_of(world, error):
    """The largest error of all ranks; one that is no number is the largest."""
    return max(world.allgather(error), key=lambda e: float("inf") if e != e else e)


@contextmanager
def limited(seconds, what):
    """End this process, and so all ranks, if the block takes longer. Lines that were written so far are in their file."""
    def end():
        print(f"HANG {what}: nothing for {seconds:.0f} s", flush=True)
        os._exit(4)
    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def guarded(world, name, budget, run, need=0.0):
    """Whether ``run()`` was right; true where there is no time for it, which is said. What it raises is printed, and costs this case only.

    Args:
        need: seconds that it takes at least.
    """
    if any(world.allgather(budget.left() <= need)):
        if world.rank == 0:
            print(f"left out for lack of time: {name}{f', which takes {need:.0f} s' if need > 1 else ''}", flush=True)
        return True
    try:
        with limited(PATIENCE, name):
            return run()
    except Exception as problem:
        print(f"FAILED {name} on rank {world.rank}: {type(problem).__name__}: {problem}"[:600], flush=True)
        return False
    finally:
        torch.cuda.empty_cache()


def pace(world, variants, seconds, rounds, most=CALLS):
    """(calls in a row, rounds) of ``interleaved`` that take about so many seconds: at most these, LEAST rounds at least."""
    taken = []
    for call in variants.values():
        call()
        torch.cuda.synchronize()
        world.barrier()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        taken.append(max(world.allgather(start.elapsed_time(end) * 1e3)))
    calls = max(1, min(most, int(BATCH / max(taken))))
    return calls, max(LEAST, min(rounds, int(seconds * 1e6 / (calls * sum(taken)))))


def medians_of(times):
    """{name: microseconds}."""
    return {name: protocol.summary(t)[0] for name, t in times.items()}


def timed(world, variants, rounds, calls, graphs=False, pause=0.0):
    """(what ``interleaved`` returns, "graph" or "eager", {} or of graphs {"eager_us": medians of calls one by one}).

    Args:
        graphs: calls are replayed from graphs; where a capture fails, which is said, they are not.
    """
    try:
        if graphs:
            times = interleaved(world, variants, rounds, calls, graphs=True, pause=pause)
            return times, "graph", {"eager_us": medians_of(interleaved(world, variants, min(rounds, 10), calls, pause=pause))}
    except Exception as problem:
        print(f"no graphs: {type(problem).__name__}: {problem}"[:300], flush=True)
        torch.cuda.synchronize()
    return interleaved(world, variants, rounds, calls, pause=pause), "eager", {}


def in_graph(call, calls):
    """A function that replays a CUDA graph of that many calls in a row; collective where the call is."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):             # the first calls on a stream get memory of their own, which no capture may
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(calls):
            call()
    return graph.replay


def interleaved(world, variants, rounds, calls=CALLS, graphs=False, pause=0.0):
    """Time variants against each other, in an order drawn anew each round: a card that has just rested is faster.

    Args:
        variants: {name: call without arguments, which launches on torch's current stream; collective}.
        rounds: timed rounds. calls: in a row in each. graphs: they are captured once and replayed, so that no host time is measured.
        pause: seconds that the card rests before each: without, long products run against its limit of power.
    Returns: {name: [microseconds per call, the maximum over ranks, one number a round]}.
    """
    events, names, runs = {name: [] for name in variants}, list(variants), {}
    for name, call in variants.items():
        call()
        world.synchronize()
        torch.cuda.synchronize()
        world.barrier()
        runs[name] = in_graph(call, calls) if graphs else lambda call=call: [call() for _ in range(calls)]
        runs[name]()
    for r in range(rounds):
        for name in Random(r).sample(names, len(names)):
            torch.cuda.synchronize()
            time.sleep(pause)
            world.barrier()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            runs[name]()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {name: [max(times) for times in zip(*world.allgather([a.elapsed_time(b) * 1e3 / calls for a, b in pairs]))]
            for name, pairs in events.items()}

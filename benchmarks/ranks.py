"""What benchmarks over several GPUs share: NCCL beside a world, and timing that takes the slowest rank."""

import os
import time
from random import Random

import torch
import torch.distributed as dist

from pknumba import World

#: Calls in a row between two events.
CALLS = 10


def connect(world):
    """torch.distributed over NCCL with the world's ranks, on this machine only. NVLink multicast stays off."""
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    port = 20000 + sum(world.allgather(os.getpid())) % 20000
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=world.rank, world_size=world.size,
                            device_id=torch.device("cuda", world.device))


def own_gpus(world):
    """Whether every rank has a GPU of its own, which NCCL demands; rank 0 says so where they have not."""
    apart = len(set(world.allgather(world.device))) == world.size
    if not apart and world.rank == 0:
        print("ranks share a GPU, which NCCL does not allow. Start one rank for each GPU.", flush=True)
    return apart


def beside_nccl(run):
    """The exit status of a benchmark: ``run(world)`` says whether results were right, on a world of MPI ranks beside NCCL."""
    world = World.mpi(executor="gpu")
    if not own_gpus(world):
        return 2
    torch.cuda.set_device(world.device)
    connect(world)
    right = run(world)
    dist.destroy_process_group()
    world.close()
    return 0 if right else 1


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

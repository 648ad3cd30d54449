"""What a call costs beside its kernel: the host's time of a cached call (2,000 of them, not waited for) and its steps, what launching ahead
of the kernel before saves (programmatic dependent launch), and the first call from an empty and a warm disk cache.

    python benchmarks/launch.py
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial

import protocol
import torch

from pknumba import World, gemm

SHAPE = (128, 128, 128)


def per_call(calls, count=2000, chunk=100):
    """{name: [microseconds of host time of each call]}: calls are not waited for within a chunk; chunks are interleaved."""
    taken = {name: [] for name in calls}
    for _ in range(count // chunk):
        for name, call in calls.items():
            for _ in range(chunk):
                start = time.perf_counter_ns()
                call()
                taken[name].append((time.perf_counter_ns() - start) * 1e-3)
            torch.cuda.synchronize()
    return taken


def cached(args):
    """Time cached calls of a tiny product beside torch's."""
    world = World.local(1, executor="gpu")
    A, B, C, D = (torch.randn(*SHAPE[:2], device="cuda", dtype=torch.bfloat16) for _ in range(4))
    calls = {"pknumba": partial(gemm, world, A, B, out=C), "torch": partial(torch.matmul, A, B, out=D)}
    for call in calls.values():
        for _ in range(20):
            call()
    world.synchronize()
    error = protocol.relative_error(C, A, B)
    times = per_call(calls)
    protocol.write(args.out, "launch (host time of a cached call)", SHAPE, "bfloat16", times["pknumba"], "torch.matmul, host time",
                   times["torch"], error)
    return error < 4e-3


def prepared():
    """(world, function that calls gemm on small arrays of its own, its launch prepared for torch's current stream, that stream)."""
    from pknumba.templates.matrices import MultiplyCall
    world = World.local(1, executor="gpu")
    A, B, C = (torch.randn(*SHAPE[:2], device="cuda", dtype=torch.bfloat16) for _ in range(3))
    whole, stream = partial(gemm, world, A, B, out=C), torch.cuda.current_stream().cuda_stream
    for _ in range(20):
        whole()
    call = next(c for c in world.cache.values() if isinstance(c, MultiplyCall))
    launch = getattr(call.launch, "_known", {}).get(stream, call.launch)             # a kernel may keep a launch for each stream
    launch.launch.fire(stream)
    return world, whole, launch.launch, stream


def steps(args):
    """Where the host time of a cached call goes: all of it, the launch alone, the driver alone, and a call in a graph of twenty."""
    from pknumba.runtime import Graph
    world, whole, launch, stream = prepared()
    graph = Graph(world, lambda stream: [whole(stream=stream) for _ in range(20)])
    times = per_call({"whole": whole, "launch": partial(launch.fire, stream), "driver": launch.ready[stream], "graph": graph.replay})
    medians = {name: protocol.summary(t)[0] for name, t in times.items()}
    parts = {"look_up_us": round(medians["whole"] - medians["launch"], 2), "launch_us": round(medians["launch"] - medians["driver"], 2),
             "driver_us": medians["driver"], "in_a_graph_us": round(medians["graph"] / 20, 3)}
    protocol.write(args.out, "launch, step by step", SHAPE, "bfloat16", times["whole"], **parts)
    print("   ", parts)
    return True


def chained(args):
    """Products one after the other, each launched before the one ahead of it has ended, and the same one by one."""
    for n in (512, 1024, 2048, 4096):
        A, B = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        variants, outs = {}, {}
        for name in ("chained", "one by one"):
            world = World.local(1, executor="gpu")
            world.sharing = name == "one by one"                        # as ranks that share a GPU do
            outs[name] = torch.empty_like(A)
            variants[name] = [partial(gemm, world, A, B, out=outs[name])]
            variants[name][0]()
            world.synchronize()
        if not torch.equal(*outs.values()):
            print(f"WRONG {n}: results differ")
            return False
        times, how = protocol.interleaved(variants, 2 * n**3 / 600e12, rounds=args.rounds)
        protocol.write(args.out, "launch, chained", (n, n, n), "bfloat16", times["chained"], "one by one", times["one by one"], how=how)
    return True


FIRST_CALL = """
import json, time, torch
torch.zeros(1, device="cuda"); torch.cuda.synchronize()
A, B, C = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(3))
torch.matmul(A, B); torch.cuda.synchronize()
t0 = time.perf_counter()
from pknumba import World, gemm
t1 = time.perf_counter()
world = World.local(1, executor="gpu")
t2 = time.perf_counter()
gemm(world, A, B, out=C)
world.synchronize()
t3 = time.perf_counter()
print(json.dumps(dict(import_s=t1 - t0, world_s=t2 - t1, call_s=t3 - t2)))
"""


def first_call(cache):
    """Seconds of import, world and first call in a fresh process with that cache directory. CUDA and the arrays exist before."""
    path = os.pathsep.join(filter(None, (str(protocol.ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run([sys.executable, "-c", FIRST_CALL], env={**os.environ, "PKNUMBA_CACHE_DIR": cache, "PYTHONPATH": path},
                          stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def first(args, repeats=3):
    """Time the first call in fresh processes, whose disk cache is empty, then warm."""
    found = {"empty": [], "warm": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            for runs in found.values():
                runs.append(first_call(cache))
    for state, runs in found.items():
        seconds = {key: [round(run[key], 3) for run in runs] for key in ("import_s", "world_s")}
        protocol.write(args.out, f"first call, {state} disk cache", (4096, 4096, 4096), "bfloat16",
                       [run["call_s"] * 1e6 for run in runs], **seconds)
    return True


def main():
    """Run the parts that the flags name. Returns the exit status."""
    p = protocol.options(__doc__, "launch.jsonl")
    args = p.parse_args()
    right = True
    for name, part in (("cached", cached), ("steps", steps), ("chained", chained), ("first", first)):
        if args.only in name:
            right &= part(args)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

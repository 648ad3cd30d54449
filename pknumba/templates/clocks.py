"""The call of a kernel that compares the clocks of ranks' GPUs: its loop, its arrays, and what the notes of two ranks say."""

import numpy as np

from ..config import CommConfig
from ..primitives import i32
from ..tiles import Task
from .geometry import View
from .transfers import prepare, workspace

#: Exchanges with each rank; the quickest counts.
ROUNDS = 64


def to_and_fro(kernel, communicate):
    """Exchanges of rank 0 with every other rank in turn, by the first warp. ``task.id``: number of the exchange, ``task.owner``: that rank,
    ``task.step``: how many signals have gone each way when it is over."""
    def drive(cfg, g, s, part, place, places):
        if place == 0:
            for i in range(g.rounds * (g.world_size - 1)):
                peer = i32(1 + i // g.rounds)
                communicate(cfg, g, s, Task(i32(i), i32(0), i32(0), peer, i32(g.base + i % g.rounds + 1)))
    return drive


def notes(kernel, world):
    """What every rank noted, (ranks, exchanges, 2) uint32; collective."""
    rounds, size, gpu = ROUNDS, world.size, world.executor == "gpu"
    cfg, length = CommConfig(blocks=1, warps=1, unroll=1, dtype="int32"), 2 * max(1, rounds * (size - 1))
    shared, _ = workspace(world, ("workspace", kernel), kernel.operator, kernel, cfg, dict.fromkeys(kernel.counters, size))
    base = shared.kept.get("base", 0)
    shared.kept["base"] = base + rounds
    if gpu:
        from ..runtime import DeviceArray
        seen = DeviceArray.empty((length,), "int32", world.device)
        view = View(seen.pointer)
    else:
        seen = np.zeros(length, np.int32)
        view = View(arrays=[seen if r == world.rank else None for r in range(size)])
    launch = prepare(kernel, world, cfg, {"seen": view}, {"rounds": rounds, "base": base}, shared)
    world.barrier()                     # every rank's kernel is loaded: loading may wait for one that spins, as who comes first does
    launch.fire(world.stream, None)
    if gpu:
        world.synchronize()
        seen = seen.get()
    return np.stack(world.allgather(seen)).view(np.uint32).reshape(size, -1, 2)


def offsets(noted):
    """Nanoseconds by which each rank's clock is ahead of rank 0's, within 2**31, of ``notes``.

    Rank 0 sent at a and had its answer at b of its clock, and the other rank answered at c of its own: c is (a + b) / 2 of rank 0's, wrong
    by half of b - a at most. The exchange with the least b - a says most.
    """
    size, found = len(noted), [0]
    for peer in range(1, size):
        mine = slice((peer - 1) * ROUNDS, peer * ROUNDS)
        sent, back, seen = noted[0, mine, 0], noted[0, mine, 1], noted[peer, mine, 0]
        best = int(np.argmin(back - sent))                                              # uint32: differences are right across a wrap
        first, last, there = int(sent[best]), int(back[best]), int(seen[best])
        ahead = there - first - (last - first) % 2**32 // 2
        found.append((ahead + 2**31) % 2**32 - 2**31)
    return found

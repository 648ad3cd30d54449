"""Timing ours against what a user would use instead, where that may fail: every rival is tried first, and one that does not run, or is
wrong, is named in its line with the reason. Ours is timed and written whatever rivals do.
"""

import os
from contextlib import contextmanager
from functools import partial

import protocol
import torch
from ranks import in_graph, limited, medians_of, pace, timed, worst_of

#: Seconds that a rival may take for its first call, with what it compiles then.
FIRST = 90


class Ours:
    """A call of ours, and the array that it writes."""

    def __init__(self, call, out):
        self.call, self.out = call, out

    def __call__(self):
        self.call()


@contextmanager
def room(world):
    """A world of the same ranks, whose symmetric memory is given back at the end of the block."""
    try:
        part = world.split(list(range(world.size)))
    except Exception as problem:
        print(f"memory is kept until the end: {reason_of(problem)}", flush=True)
        part = None
    try:
        yield part or world
    finally:                    # not the world's own end: that ends all worlds after an error, which may be a rival's
        if part:
            torch.cuda.synchronize()
            part.close()


def reason_of(problem):
    """An exception in one line."""
    return f"{type(problem).__name__}: {str(problem).strip().splitlines()[0] if str(problem).strip() else 'no message'}"[:200]


def agreed(world, name, attempt):
    """(what ``attempt()`` returns, None), or (None, why it failed): the same on every rank; collective."""
    found = why = None
    with limited(FIRST, name):
        try:
            found = attempt()
            torch.cuda.synchronize()
        except Exception as problem:                                    # whatever it is, ours is measured all the same
            why = reason_of(problem)
        said = [told for told in world.allgather(why) if told]
    return (None, said[0]) if said else (found, None)


def trial(world, name, make, error=None, limit=0.0):
    """(a rival, None), or (None, why it does not run): the same on every rank; collective.

    Args:
        make: function () -> rival, which is called without arguments and leaves its result in ``out``.
        error: function (out) -> relative error, which calls no other rank; None: results are not looked at. limit: the largest that passes.
    """
    def first():
        rival = make()
        rival()
        torch.cuda.synchronize()
        found = error(rival.out) if error else 0.0
        if not found <= limit:
            raise ValueError(f"wrong, relative error {found:.1e}")
        return rival
    rival, why = agreed(world, name, first)
    if why:
        torch.cuda.empty_cache()
        if world.rank == 0:
            print(f"rival not run: {name}: {why}", flush=True)
    return rival, why


def capturable(world, name, call):
    """Whether a call runs from a CUDA graph, on every rank; collective."""
    _, why = agreed(world, name, lambda: in_graph(call, 1)())
    if why and world.rank == 0:
        print(f"no graphs, {name}: {why}", flush=True)
    return not why


def compiled(function, *example):
    """(the function compiled by torch, "torch.compile"); where that fails the function itself, and why."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")        # no processes beside MPI's
    try:
        made = torch.compile(function, dynamic=True)
        made(*example)
        torch.cuda.synchronize()
        return made, "torch.compile"
    except Exception as problem:
        return function, f"eager, {reason_of(problem)}"


def compare(world, args, op, shape, ours, rivals, *, seconds, error=None, limit=0.0, graphs=False, layout=None, flops=0):
    """Check ours, try rivals, time what runs, interleaved; rank 0 writes a line for each rival, run or not. Whether ours was right.

    Args:
        ours: as rivals' ``make`` gives them. rivals: {name: make}, see ``trial``. error, limit: of ours and of rivals.
        seconds: for the timed rounds. graphs: calls are replayed from CUDA graphs, if all can be. layout: of the line.
        flops: operations of one rank.
    """
    ours()
    world.synchronize()
    torch.cuda.synchronize()
    worst = worst_of(world, error(ours.out)) if error else None
    if error and not worst <= limit:
        if world.rank == 0:
            print(f"WRONG {op} {shape} {layout or ''}: relative error {worst:.2e}", flush=True)
        return False
    tried = {name: trial(world, name, make, error, limit) for name, make in rivals.items()}
    variants = {"ours": ours, **{name: rival for name, (rival, _) in tried.items() if rival}}
    calls, rounds = pace(world, variants, seconds, args.rounds)
    graphs = graphs and all([capturable(world, name, variant) for name, variant in variants.items()])
    times, how, eager = timed(world, variants, rounds, calls, graphs)
    if world.rank == 0:
        medians = medians_of(times)
        more = dict(world=world.size, gpus=world.size, layout=layout, medians_us=medians, calls=calls, how=how, **eager)
        more |= {"tflops": round(flops / medians["ours"] * 1e-6, 1)} if flops else {}
        write = partial(protocol.write, args.out, op, shape, "bfloat16", times["ours"])
        for name, (rival, why) in tried.items():
            told = {"not_run": why, "rival_compiled": getattr(rival, "how", None)}
            write(name, times.get(name), worst, config="chosen", **more, **{field: text for field, text in told.items() if text})
    return True

"""What one MPI rank does in test_mpi.py: ``mpirun -n N python -m tests.interpreter.mpi_ranks CASE FOLDER``."""

import dataclasses
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from pknumba import interpreter as cpu
from pknumba.errors import DeadlockError, WorldError
from pknumba.interpreter.mpi import SharedHeap
from pknumba.tiles import Role, Tile

from . import gemm_all_reduce as kernel

COMM = MPI.COMM_WORLD
RANK, WORLD = COMM.rank, COMM.size


def gemm(heap, bug="", calls=3, p=kernel.SMALL):
    """Calls of the GEMM + all-reduce with new inputs, without any host synchronisation but that of the values' check."""
    p = dataclasses.replace(p, world=WORLD, bug=bug)
    session = cpu.Session(seed=RANK, heap=heap)
    C, ready, done = heap.array((p.m, p.n), p.dtype), heap.counters(p.tasks), heap.counters(1)
    took = []
    for call in range(calls):
        A, B = kernel.inputs(p, call)
        COMM.Barrier()
        start = time.perf_counter()
        kernel.launch(session, p, kernel.world(p, RANK, A, B, C, ready, done), call + 1)
        took.append(time.perf_counter() - start)
        assert (C[RANK] == kernel.expected(p, A, B)).all()
        COMM.Barrier()
    return min(took)


def role(session, fn, name="worker"):
    """Run fn(block) as a kernel of one role."""
    launch = session.launch(RANK, name, 1)
    block = launch.block(0)
    launch.role(block, Role(name), 0, lambda: fn(block))
    launch.wait()


def reductions(heap):
    """Every rank adds into rank 0's array at the same time: no addition is lost."""
    session, times = cpu.Session(heap=heap), 200
    arrays, counters = heap.array((8, 64), "float32"), cpu.Counters("done", heap.counters(1), RANK)
    tensor = cpu.Tensor("sum", arrays, RANK)

    def worker(block):
        tile = block.tile("tile", 1024, Tile((8, 64), "float32"))
        cpu.write(tile, 1.0)
        cpu.fence_async(tile)
        for _ in range(times):
            cpu.transfer("store_add_async", tile, tensor.window((0, 0), (8, 64), 0), combine="add")
            cpu.current().stores.wait(0, "written")
        counters.add(0, 0)
        if RANK == 0:
            counters.wait(0, WORLD)
    role(session, worker)
    assert RANK or (arrays[0] == times * WORLD).all()


def part(heap):
    """A sub-world of the ranks but the first has arrays and counters of its own."""
    if RANK:
        sub = heap.part(range(1, WORLD))
        arrays, counters = sub.array((2,), "uint32"), cpu.Counters("hello", sub.counters(1), sub.rank)
        assert len(arrays) == WORLD - 1 == sub.size and sub.rank == RANK - 1

        def worker(block):
            for peer in range(sub.size):
                counters.add(peer, 0)
            counters.wait(0, sub.size)
        role(cpu.Session(heap=heap), worker)
    COMM.Barrier()


def outside(heap):
    """Rank 0 waits in a kernel for a signal; the others wait in host code for rank 0."""
    counters = cpu.Counters("never", heap.counters(2), RANK)
    if RANK == 0:
        try:
            role(cpu.Session(heap=heap), lambda block: counters.wait(1, 7))
        finally:
            COMM.Barrier()
    else:
        with heap.outside(range(WORLD)):
            COMM.Barrier()
        heap.check()


def ended(heap):
    """The last rank leaves without having signalled."""
    counters = cpu.Counters("never", heap.counters(1), RANK)
    if RANK < WORLD - 1:
        role(cpu.Session(heap=heap), lambda block: counters.wait(0, 1))


def raising(heap):
    """The last rank raises in its kernel, while the others wait for it."""
    counters = cpu.Counters("never", heap.counters(1), RANK)

    def worker(block):
        if RANK == WORLD - 1:
            raise ValueError("something broke")
        counters.wait(0, 1)
    role(cpu.Session(heap=heap), worker)


def leaving(heap):
    """The last rank's script ends with an exception in its host code."""
    counters = cpu.Counters("never", heap.counters(1), RANK)
    if RANK == WORLD - 1:
        sys.excepthook = lambda *error: None
        Path(sys.argv[2], str(RANK)).write_text("left")
        raise KeyError("in host code")
    role(cpu.Session(heap=heap), lambda block: counters.wait(0, 1))


CASES = dict(exact=gemm, lost_signal=lambda heap: gemm(heap, "lost_signal"), lost_arrive=lambda heap: gemm(heap, "lost_arrive"),
             reductions=reductions, part=part, outside=outside, ended=ended, raising=raising, leaving=leaving,
             speed=lambda heap: gemm(heap, p=kernel.Problem()))

if __name__ == "__main__":
    np.seterr(all="raise")
    try:
        text = f"ok {CASES[sys.argv[1]](SharedHeap(COMM, 20.0))}"
    except (DeadlockError, WorldError, ValueError) as failure:
        text = f"{type(failure).__name__} {failure}"
    Path(sys.argv[2], str(RANK)).write_text(text)

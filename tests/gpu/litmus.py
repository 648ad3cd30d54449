"""A litmus test of what signals promise: a payload, then a signal; whoever has waited for the signal reads every byte of the payload.

    ./scripts/mps run -n 2 -- python tests/gpu/litmus.py --rounds 1000000      # ranks that share a card
    mpirun -n 2 python tests/gpu/litmus.py --rounds 1000000                    # ranks on two cards

Every rank writes to the next one, round after round, with another pattern in every word of every round, and compares each word
that it was sent. ``Plain``: ordinary stores and loads of a warp. ``Bulk``: the copy engine stores, and the copy engine loads. The
rounds are played inside one kernel. Prints PASS or FAIL from rank 0; with --out also a JSON line. On the interpreter the same
kernels run in ``tests/primitives/test_litmus.py``.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

from pknumba import World
from pknumba.interpreter import read, write
from pknumba.lowering import Int, constant, primitive
from pknumba.primitives import (arrive, expect, fence_async, i32, load_async, mod, ring, signal, signal_all, store_async, store_async_wait,
                                wait, wait_until)
from pknumba.templates.call import Matrix, Workspace, prepare
from pknumba.tiles import Semaphore, Tile, shared

if __package__:
    from ..primitives.tiny import TinyComm, TinyConfig
else:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from tests.primitives.tiny import TinyComm, TinyConfig

#: The payload: rows and columns of 32-bit words.
SHAPE = 32, 32
WORDS = SHAPE[0] * SHAPE[1]
_ROUND, _WORD = 0x9E3779B1, 0x85EBCA6B


def pattern(number):
    """The payload of a round: no word is what it was in any of the 2^32 - 1 rounds before."""
    word = np.arange(WORDS, dtype=np.uint32).reshape(SHAPE)
    return (np.uint32(number * _ROUND & 0xFFFFFFFF) ^ word * np.uint32(_WORD)).view(np.float32)


#: PTX: the four words of unit u (``$1``) in a round (``$2``) are in a, b, c, d.
_PATTERN = (f".reg .u32 h, w, a, b, c, d; mul.lo.u32 h, $2, {_ROUND}; shl.b32 w, $1, 2; "
            + " ".join(f"mad.lo.u32 {r}, w, {_WORD}, {i * _WORD & 0xFFFFFFFF}; xor.b32 {r}, {r}, h;" for i, r in enumerate("abcd")))
_COUNT = ".reg .u32 e, f, g, i; .reg .pred p; mov.u32 $0, 0; {load} " + " ".join(
    f"setp.ne.u32 p, {x}, {y}; @p add.u32 $0, $0, 1;" for x, y in zip("efgi", "abcd"))


def _each(p, first, step, n):
    """Numbers of the units of 16 bytes that this thread has: first, first + step, ..., n times."""
    for i in p.loop(p.const(n)):
        yield p.b.add(first, p.scale(i, step))


def _at(p, base, unit):
    return p.b.add(base, p.b.shl(unit, p.const(4)) if base.type == p.i32 else p.wide(p.b.shl(unit, p.const(4))))


def _summed(p, first, step, n, count):
    """The sum of count(unit) over this thread's units."""
    total = p.variable(p.i32, 0)
    for unit in _each(p, first, step, n):
        p.b.store(p.b.add(p.b.load(total), count(unit)), total)
    return p.b.load(total)


@primitive(scope="warp")
def imprint(tensor, number, peer):
    """Write the round's payload to a rank by ordinary stores. PTX: st.global.v4.b32."""
    write(tensor.window((0, 0), SHAPE, peer), pattern(number))


@imprint.lowering
def _(tensor, number, peer):
    def emit(p, tensor_at, number, peer):
        table, = p.tensor(tensor_at, "peers")
        base = p.field(p.i64, p.b.add(table, p.wide(p.b.shl(peer, p.const(3)))), 0)
        for unit in _each(p, p.lane(), 32, WORDS // 128):
            p("{ " + _PATTERN.replace("$1", "$0").replace("$2", "$1") + " st.global.v4.b32 [$2], {a, b, c, d}; }", unit, number,
              _at(p, base, unit))
    return emit


@primitive(scope="warp")
def differences(tensor, number):
    """How many words of this rank's payload are not the round's, read by ordinary loads. PTX: ld.global.v4.b32."""
    return int((read(tensor.window((0, 0), SHAPE)).view(np.uint32) != pattern(number).view(np.uint32)).sum())


@differences.lowering
def _(tensor, number):
    text = "{ " + _PATTERN + _COUNT.replace("{load}", "ld.global.v4.b32 {e, f, g, i}, [$3];") + " }"

    def emit(p, tensor_at, number):
        base, = p.tensor(tensor_at, "pointer")
        return _summed(p, p.lane(), 32, WORDS // 128, lambda unit: p(text, unit, number, _at(p, base, unit), out=[p.i32]))
    return Int, emit


@primitive(scope="warpgroup")
def stamp_tile(tile, number):
    """Write the round's payload to a shared tile by ordinary stores. PTX: st.shared.v4.b32."""
    write(tile, pattern(number))


@stamp_tile.lowering
def _(tile, number):
    def emit(p, tile_at, number):
        for unit in _each(p, p.thread(), 128, WORDS // 512):
            p("{ " + _PATTERN.replace("$1", "$0").replace("$2", "$1") + " st.shared.v4.b32 [$2], {a, b, c, d}; }", unit, number,
              _at(p, tile_at, unit))
    return emit


@primitive(scope="warpgroup")
def differences_tile(tile, number):
    """How many words of a shared tile are not the round's. PTX: ld.shared.v4.b32."""
    return int((read(tile).view(np.uint32) != pattern(number).view(np.uint32)).sum())


@differences_tile.lowering
def _(tile, number):
    text = "{ " + _PATTERN + _COUNT.replace("{load}", "ld.shared.v4.b32 {e, f, g, i}, [$3];") + " }"

    def emit(p, tile_at, number):
        return _summed(p, p.thread(), 128, WORDS // 512, lambda unit: p(text, unit, number, _at(p, tile_at, unit), out=[p.i32]))
    return Int, emit


@primitive(scope=("warp", "warpgroup"))
def count_wrong(counters, number, n):
    """Add n to this rank's counter, every thread its own. PTX: red.relaxed.gpu.global.add.u32."""
    counters.add(counters.rank, number, n)


@count_wrong.lowering
def _(counters, number, n):
    constant(number, "count_wrong: number")

    def emit(p, counters_at, number, n):
        own = p.parameter(p.i64, counters_at, 0)
        p("red.relaxed.gpu.global.add.u32 [$0], $1;", p.b.add(own, p.wide(p.b.shl(number, p.const(2)))), n)
    return emit


class Plain(TinyComm):
    """Ordinary stores, signal; wait, ordinary loads. Rounds are ``g.k_tiles``; counters are numbered by the rank that adds."""

    tensors, symmetric, kinds = ("X",), ("X",), {"X": "float32"}
    counters = ("sent", "seen", "wrong")

    @staticmethod
    def communicator(cfg, g, s, task):
        after, before = mod(g.rank + 1, g.world_size), mod(g.rank + g.world_size - 1, g.world_size)
        wrong = i32(0)
        for r in range(g.k_tiles):
            wait_until(g.seen, after, r)                # it has read what I sent in the round before
            imprint(g.X, i32(r), after)
            signal_all(g.sent, g.rank)
            wait_until(g.sent, before, r + 1)
            wrong = i32(wrong + differences(g.X, i32(r)))
            signal_all(g.seen, g.rank)
        count_wrong(g.wrong, 0, wrong)


class Bulk(TinyComm):
    """A tile by ordinary stores, from there to the next rank by the copy engine, signal; wait, into another tile by the copy engine."""

    tensors, symmetric, kinds = ("X",), ("X",), {"X": "float32"}
    counters = ("sent", "seen", "wrong")

    @staticmethod
    def shared(cfg):
        tile = Tile(SHAPE, "float32", 128)
        return shared(mine=tile, theirs=tile, mine_full=Semaphore(1, by="consumer"), mine_empty=Semaphore(1, by="storer"),
                      theirs_full=Semaphore(1, by="loader"), theirs_empty=Semaphore(1, by="consumer"))

    @staticmethod
    def consumer(cfg, g, s, task):
        wrong = i32(0)
        for r in range(g.k_tiles if task.id == 0 else 0):
            phase = ring(r, 1)[1]
            wait(s.mine_empty[0], phase ^ 1)
            stamp_tile(s.mine, i32(r))
            fence_async(s.mine)
            arrive(s.mine_full[0])
            wait(s.theirs_full[0], phase)
            wrong = i32(wrong + differences_tile(s.theirs, i32(r)))
            arrive(s.theirs_empty[0])
        count_wrong(g.wrong, 0, wrong)

    @staticmethod
    def storer(cfg, g, s, task):
        after = mod(g.rank + 1, g.world_size)
        for r in range(g.k_tiles if task.id == 0 else 0):
            wait_until(g.seen, after, r)
            wait(s.mine_full[0], ring(r, 1)[1])
            store_async(g.X, (0, 0), s.mine, after)
            store_async_wait(0)
            arrive(s.mine_empty[0])
            signal(g.sent, g.rank, after)

    @staticmethod
    def loader(cfg, g, s, task):
        before = mod(g.rank + g.world_size - 1, g.world_size)
        for r in range(g.k_tiles if task.id == 0 else 0):
            wait_until(g.sent, before, r + 1)
            expect(s.theirs_full[0], s.theirs)
            load_async(s.theirs, g.X, (0, 0), s.theirs_full[0])
            wait(s.theirs_empty[0], ring(r, 1)[1])
            signal(g.seen, g.rank, before)


def play(world, kernel, rounds):
    """Run the rounds on this rank: (words that were wrong, seconds)."""
    cfg, x = TinyConfig(dtype="float32"), world.symmetric(SHAPE, "float32")
    if world.executor == "gpu":
        matrix = Matrix(x.pointer, *SHAPE, x.pitch, "float32", x.peers_table, targets=tuple((p, SHAPE[0]) for p in x.pointers))
    else:
        matrix = Matrix(arrays=x.arrays)
    workspace = Workspace(kernel, world, cfg, world.size)
    numbers = {"grid": (world.size, 1), "tasks": world.size, "k_tiles": rounds}
    call = prepare(kernel, world, cfg, {"X": matrix}, numbers, workspace)
    world.barrier()
    start = time.perf_counter()
    call.fire(world.stream)
    world.synchronize()
    seconds = time.perf_counter() - start
    world.barrier()
    return int(workspace.counters["wrong"].values()[0]), seconds


def _surroundings():
    """Card, versions, commit and command, as benchmarks write them down."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
    from protocol import surroundings
    return surroundings()


def main():
    """Both kernels on all ranks. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, help="add a JSON line for each kernel to this file")
    args, failed = parser.parse_args(), False
    with World.mpi() as world:
        cards = len(set(world.allgather(world._here.info.uuid))) if world.executor == "gpu" else 0
        for kernel in (Plain, Bulk):
            found = world.allgather(play(world, kernel, args.rounds))
            wrong, seconds = sum(n for n, _ in found), max(s for _, s in found)
            failed |= wrong > 0
            if world.rank == 0:
                line = dict(op=f"litmus {kernel.__name__}", rounds=args.rounds, world=world.size, gpus=cards, executor=world.executor,
                            bytes_compared=4 * WORDS * args.rounds * world.size, wrong_words=wrong, seconds=round(seconds, 2),
                            **(_surroundings() if cards else {}))
                print("FAIL" if wrong else "PASS", json.dumps(line), flush=True)
                if args.out:
                    with args.out.open("a") as file:
                        file.write(json.dumps(line) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

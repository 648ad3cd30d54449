"""Decode attention: one query of every sequence over keys that are spread over ranks; parts are merged by their log-sum-exp."""

from ..config import DecodeAttentionConfig
from ..primitives import (arrive, div, exp2, expect, fence_async, fill, fill_rows, i32, load, load_async, load_rows, log2,
                          maximum, mod, ring, signal_all, store, store_async, store_async_read_wait, store_async_wait, store_rows,
                          wait, wait_until)
from ..templates import LCS, attend_decode
from ..templates.drivers import counted_blocks
from ..tiles import Semaphore, Tile, shared
from .attention import Attention


class DecodeAttention(LCS):
    """A task is a part of a head's keys, for all query heads that share it; then every rank merges the parts of all ranks, which it reads
    from their memory. A task's ``row`` is a head of K and V of all, ``col`` a tile of its query heads, ``first`` the first key of its
    part, ``peer`` whether it merges. Calls take turns with two halves of the memory of parts: who writes a half again has had all
    ranks' parts of the call between, so all have read what it held."""

    config, title = DecodeAttentionConfig, "decode_attention"
    tensors = ("Q", "K", "V", "O", "L", "parts", "lse")
    kinds = {"L": "float32", "parts": "float32", "lse": "float32"}
    symmetric, counters = ("L", "parts"), ("done", "ended")
    #: computing: tasks that attend, before those that merge.
    numbers = {**Attention.numbers, "computing": 1}

    @staticmethod
    def shared(cfg):
        return shared(**Attention.shared(cfg)._asdict(), part=Tile((cfg.part_stages, cfg.part_q, cfg.width), "float32", cfg.swizzle),
                      merged=Tile((cfg.part_q, cfg.width), cfg.dtype, cfg.swizzle, over="o"),
                      p_full=Semaphore(cfg.part_stages, by="loader"), p_empty=Semaphore(cfg.part_stages, by="consumer"))

    @classmethod
    def driver(kernel, role):
        """Storers count the blocks of this rank that have done their tasks."""
        return counted_blocks if role.name == "storer" else super().driver(role)

    @staticmethod
    def locate(cfg, g, task):
        """Where a task's queries and keys lie: the parts of one head follow each other."""
        merges = task.id >= g.computing
        number = i32(task.id - g.computing) if merges else div(task.id, g.splits)
        first = i32(mod(task.id, g.splits) * g.chunk)
        return div(number, g.tiles), mod(number, g.tiles), first, i32(merges)

    @staticmethod
    def steps(cfg, g, number):
        """Blocks of K and V that a task takes."""
        if number >= g.computing:
            return i32(0)
        return Attention.blocks(cfg, g, i32(mod(number, g.splits) * g.chunk), i32(0))

    @staticmethod
    def half(cfg, g, task):
        """Number of the first part of a head in memory, in the half that this call writes."""
        return i32((mod(g.epoch, 2) * g.lines + task.row) * g.splits)

    @staticmethod
    def loader(cfg, g, s, task):
        if task.peer == 0:
            DecodeAttention.load_keys(cfg, g, s, task)
        else:
            DecodeAttention.load_parts(cfg, g, s, task)

    @staticmethod
    def load_keys(cfg, g, s, task):
        """Q, and the blocks of a part of K and V."""
        batch, head = div(task.row, g.heads), mod(task.row, g.heads)
        _, lap = ring(task.turn, 1)
        wait(s.o_empty[0], lap ^ 1)             # the last task's result has been stored, so all is free
        expect(s.q_full[0], s.q[0])
        load_async(s.q[0], g.Q, (batch, head, task.col, 0), s.q_full[0])
        count = Attention.blocks(cfg, g, task.first, i32(0))
        for i in range(count):
            stage, phase = ring(i32(task.step + i), cfg.stages)
            wait(s.k_empty[stage], phase ^ 1)
            expect(s.k_full[stage], s.k[stage])
            load_async(s.k[stage], g.K, (batch, head, count - 1 - i, 0), s.k_full[stage], task.first)
            wait(s.v_empty[stage], phase ^ 1)
            expect(s.v_full[stage], s.v[stage])
            load_async(s.v[stage], g.V, (batch, head, count - 1 - i, 0), s.v_full[stage], task.first)

    @staticmethod
    def load_parts(cfg, g, s, task):
        """Once all ranks have told, every part of a tile of query heads."""
        wait_until(g.done, i32(task.row * g.tiles + task.col), i32(g.epoch * g.world_size * g.splits))
        step = DecodeAttention.before(cfg, g, task)
        for peer in range(g.world_size):
            for part in range(g.splits):
                stage, phase = ring(step, cfg.part_stages)
                wait(s.p_empty[stage], phase ^ 1)
                expect(s.p_full[stage], s.part[stage])
                place = (DecodeAttention.half(cfg, g, task) + part, task.col, 0)
                load_async(s.part[stage], g.parts, place, s.p_full[stage], peer=peer)
                step = i32(step + 1)

    @staticmethod
    def before(cfg, g, task):
        """Parts that this block has merged before."""
        return i32(div(i32(task.id - g.computing), g.blocks) * g.world_size * g.splits)

    @staticmethod
    def consumer(cfg, g, s, task):
        if task.peer == 0:
            Attention.consumer(cfg, g, s, task)
        else:
            DecodeAttention.merge(cfg, g, s, task)

    @staticmethod
    def merge(cfg, g, s, task):
        """The parts, weighed by their sums, in the order of ranks."""
        _, lap = ring(task.turn, 1)
        o, top, total = fill(cfg.part_q, cfg.width, 0.0), fill_rows(cfg.part_q, -1e30), fill_rows(cfg.part_q, 0.0)
        step = DecodeAttention.before(cfg, g, task)
        for peer in range(g.world_size):
            for part in range(g.splits):
                stage, phase = ring(step, cfg.part_stages)
                wait(s.p_full[stage], phase)
                sums = load_rows(g.L, (DecodeAttention.half(cfg, g, task) + part, task.col), cfg.part_q, peer)
                new = maximum(top, sums)
                shrink, weight = exp2((top - new) * 1.4426950408889634), exp2((sums - new) * 1.4426950408889634)
                o, total, top = o * shrink + load(s.part[stage]) * weight, total * shrink + weight, new
                arrive(s.p_empty[stage])
                step = i32(step + 1)
        wait(s.o_empty[0], lap ^ 1)
        store_rows(g.lse, (task.row, task.col), top + log2(total) * 0.6931471805599453)
        store(s.merged, o / maximum(total, 1e-30))
        fence_async(s.merged)
        arrive(s.o_full[0], s.merged)

    @staticmethod
    def storer(cfg, g, s, task):                # one thread: a part to this rank's memory, where all may read it; or the result
        _, lap = ring(task.turn, 1)
        wait(s.o_full[0], lap)
        if task.peer == 0:
            store_async(g.parts, (DecodeAttention.half(cfg, g, task) + div(task.first, g.chunk), task.col, 0), s.o[0])
        else:
            store_async(g.O, (div(task.row, g.heads), mod(task.row, g.heads), task.col, 0), s.merged)
        store_async_read_wait(0)
        arrive(s.o_empty[0])
        if task.peer == 0:
            store_async_wait(0)                 # written, and the log-sum-exp that the consumer wrote before it arrived
            signal_all(g.done, i32(task.row * g.tiles + task.col))


def decode_attention(world, q, k, v, *, scale=None, out=None, lse=None, config=None, stream=None):
    """Attention of one query of every sequence over keys that are spread over ranks, the same on every rank; collective.

    Args:
        world: World of this rank; every rank calls with the same queries.
        q: (batch, heads, width), bfloat16 or float16. k, v: (batch, heads of K and V, this rank's keys, width) of the same dtype, in
            layouts as for ``attention``; ranks may have different numbers of keys, also none, in any order. heads is a multiple of
            the heads of K and V, of which each serves query heads that follow each other.
        scale: as in ``attention``. out: (batch, heads, width), contiguous; made with q's library if None. lse: (batch, heads) float32,
            contiguous; made if None.
        config: DecodeAttentionConfig; chosen by width if None. stream: as in ``gemm``; to be passed where two streams work at once,
            since calls of one shape share counters.

    Returns: (O, lse), the same bits on every rank. Each part of the keys gives a normalised result and its log-sum-exp in float32; they are
    merged in float32 in the order of ranks, and rounded once. A sequence without keys has O = 0 and lse = -inf.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError on every rank, before anything is launched; HangError if a
    rank does not come.
    """
    return attend_decode(DecodeAttention, world, q, k, v, out, lse, config, stream, scale=scale)

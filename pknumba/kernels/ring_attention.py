"""Ring attention: a sequence spread over ranks; K and V travel round while every rank attends to what has come."""

from ..config import RingAttentionConfig
from ..primitives import (div, expect, i32, load_async, mod, ring, signal, store_async, store_async_read_wait, store_async_wait, wait,
                          wait_until)
from ..templates import LCSM, attend_ring, repeated, ring_rows  # noqa: F401 - ring_rows is public with the operator
from ..tiles import Semaphore, Tile, shared
from .attention import Attention


class RingAttention(LCSM, Attention):
    """Movers push this rank's K and V to its peers, nearest first, head after head; a tile begins with the keys at hand and goes on with
    those of the rank before, and so on round, as they arrive. Its result, maxima and sums stay in registers until the end."""

    config, alone, title = RingAttentionConfig, Attention, "ring_attention"
    tensors = ("Q", "K", "V", "O", "L", "order", "far_k", "far_v", "mail_k", "mail_v")
    symmetric, counters = ("far_k", "far_v", "mail_k", "mail_v"), ("arrived",)
    #: pairs: heads of K and V in all. bands: pieces of one of them of K, each depth chunks of rows; parts: of K and V. pieces: of this
    #: rank. workers: storers and movers of a rank.
    helper_registers = 80
    movers_first = True                         # or else, where ranks share a card, tiles might wait for movers that find no SM
    numbers = {**Attention.numbers, **dict.fromkeys("pairs bands depth parts pieces workers".split(), 1)}

    @staticmethod
    def shared(cfg):
        return shared(**Attention.shared(cfg)._asdict(), full=Semaphore(cfg.movers, by="communicator"),
                      mail=Tile((cfg.movers, cfg.mail_rows, cfg.width), cfg.dtype, cfg.swizzle, over="k, v"))

    @staticmethod
    def loader(cfg, g, s, task):                # one thread: what is at hand, then what arrives
        Attention.loader(cfg, g, s, task)
        pair, step = div(task.row, g.group), i32(task.step + Attention.blocks(cfg, g, task.first, i32(0)))
        for hop in range(i32(1), g.world_size):
            source, count = Attention.source(cfg, g, i32(hop)), Attention.blocks(cfg, g, task.first, i32(hop))
            if count > 0:
                wait_until(g.arrived, i32(source * g.pairs + pair), i32(g.epoch * g.parts))
            for i in range(count):
                stage, phase = ring(i32(step + i), cfg.stages)
                wait(s.k_empty[stage], phase ^ 1)
                expect(s.k_full[stage], s.k[stage])
                load_async(s.k[stage], g.far_k, (pair, count - 1 - i, 0), s.k_full[stage], peer=source)
                wait(s.v_empty[stage], phase ^ 1)
                expect(s.v_full[stage], s.v[stage])
                load_async(s.v[stage], g.far_v, (pair, count - 1 - i, 0), s.v_full[stage], peer=source)
            step = i32(step + count)

    @staticmethod
    def communicator(cfg, g, s, task):          # one thread: g.depth chunks of a head of K or V, through shared memory to a peer
        part, step = mod(task.id, g.parts), div(task.id, g.parts)
        pair, peer = div(step, g.world_size - 1), mod(i32(g.rank + 1 + mod(step, g.world_size - 1)), g.world_size)
        heads = div(g.heads, g.group)
        wait_until(g.finished, peer, i32((g.epoch - 1) * g.workers))
        for k in range(g.depth):
            row, (_, phase) = i32(mod(part, g.bands) * g.depth + k), ring(i32(task.step + k), 1)
            expect(s.full[task.part], s.mail[task.part])
            if part < g.bands:
                load_async(s.mail[task.part], g.K, (div(pair, heads), mod(pair, heads), row, 0), s.full[task.part])
            else:
                load_async(s.mail[task.part], g.V, (div(pair, heads), mod(pair, heads), row, 0), s.full[task.part])
            wait(s.full[task.part], phase)
            RingAttention.post(cfg, g, s, task, part, (pair, row, 0), peer)
            store_async_read_wait(0)            # read: the chunk may be overwritten
        store_async_wait(0)                     # written at the peer
        signal(g.arrived, i32(g.rank * g.pairs + pair), peer)

    @staticmethod
    def post(cfg, g, s, task, part, place, peer):
        """A chunk to a peer, where this rank's K or V belongs."""
        if part < g.bands:
            store_async(g.mail_k, place, s.mail[task.part], peer)
        else:
            store_async(g.mail_v, place, s.mail[task.part], peer)


@repeated("q", "k", "v", "out", "lse", result="out, lse")
def ring_attention(world, q, k, v, *, causal=False, zigzag=None, rows=None, scale=None, out=None, lse=None, config=None, stream=None):
    """This rank's rows of O = softmax(scale * Q @ K.T) @ V over a sequence that is spread over ranks, and their log-sum-exp; collective.

    Args:
        world: World of this rank; every rank calls with arrays of the same batch, heads, width and dtype.
        q: (batch, heads, this rank's rows, width), as in ``attention``. k, v: (batch, heads of K and V, this rank's rows, width). Which
            rows of the sequence those are, ``ring_rows(rows, world.size, world.rank, zigzag)`` says.
        causal: every query sees the keys up to its own position.
        zigzag: the sequence is cut into twice as many pieces as there are ranks, and rank r has pieces r and 2 size - 1 - r: then causal
            ranks have equal work. Otherwise ranks have one piece each, in order. None: if causal.
        rows: of the whole sequence; as many on every rank if None. Pieces are those of ``numpy.array_split``.
        scale, out, lse: as in ``attention``.
        config: RingAttentionConfig; chosen if None. stream: as in ``gemm``; to be passed where two streams work at once, since calls
            of one shape share counters.

    Returns: (O, lse) of this rank's rows. One launch; O, maxima and sums stay in float32 registers over all keys, whose order depends on
    the rank alone: the same inputs give the same bits. The world keeps symmetric memory for K and V of the whole sequence.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError on every rank, before anything is launched; HangError if a
    rank does not come.
    """
    return attend_ring(RingAttention, world, q, k, v, out, lse, config, stream, causal=causal, zigzag=zigzag, rows=rows, scale=scale)

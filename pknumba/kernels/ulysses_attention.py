"""Ulysses attention: a sequence spread over ranks is exchanged for heads, and the result back, while every rank attends with its heads."""

from ..config import UlyssesAttentionConfig
from ..primitives import (div, expect, i32, least, load_async, mod, ring, signal, store_async, store_async_read_wait, store_async_wait,
                          tile_coord, wait, wait_until)
from ..templates import LCSM, attend_ulysses, meeting_movers
from ..tiles import Semaphore, Tile, shared
from .attention import Attention


class UlyssesAttention(LCSM, Attention):
    """Movers push this rank's rows of Q, K and V to the ranks that have their heads, one head of K and V with its query heads after the
    other; tiles begin with the first as the next arrive, and their results go to the ranks that have the rows."""

    config, alone, title = UlyssesAttentionConfig, Attention, "ulysses_attention"
    tensors = ("Q", "K", "V", "O", "L", "order", "own_q", "own_k", "own_v", "mail_q", "mail_k", "mail_v")
    symmetric, counters = ("Q", "K", "V", "O", "mail_q", "mail_k", "mail_v"), ("arrived",)
    #: pairs: heads of K and V of a rank. bands: pieces of a head of this rank's rows, each depth chunks; parts: of a head of K, of V and of
    #: their query heads. pieces: of this rank. workers: storers and movers of a rank.
    numbers = {**Attention.numbers, **dict.fromkeys("pairs bands depth parts pieces workers".split(), 1)}
    helper_registers = 80
    movers_first = True                         # or else, where ranks share a card, tiles might wait for movers that find no SM

    @staticmethod
    def shared(cfg):
        return shared(**Attention.shared(cfg)._asdict(), full=Semaphore(cfg.movers, by="communicator"),
                      mail=Tile((cfg.movers, cfg.mail_rows, cfg.width), cfg.dtype, cfg.swizzle, over="k, v"))

    @classmethod
    def driver(kernel, role):
        """A call ends once every rank's results are where they belong."""
        return meeting_movers if role.name == "communicator" else super().driver(role)

    @staticmethod
    def place(cfg, g, number):
        """(head of this rank's, rank that has the rows, tile of them, position of its first row) of a task."""
        if cfg.causal:
            line, within = Attention.tile(cfg, g, number)
            peer = div(within, div(g.tiles, g.world_size))
        else:
            line, within = tile_coord(number, (g.lines, g.tiles), g.together)
            peer = mod(i32(div(within, div(g.tiles, g.world_size)) + g.rank), g.world_size)
        tile = mod(within, div(g.tiles, g.world_size))
        return line, peer, tile, i32(peer * g.chunk + least(peer, g.extra) + tile * cfg.tile_q)

    @staticmethod
    def locate(cfg, g, task):
        """Where a task's tile lies, and whose rows it has."""
        line, peer, tile, first = UlyssesAttention.place(cfg, g, task.id)
        return line, tile, first, peer

    @staticmethod
    def steps(cfg, g, number):
        """Blocks of K and V that a task takes."""
        return Attention.blocks(cfg, g, UlyssesAttention.place(cfg, g, number)[3], i32(0))

    @staticmethod
    def loader(cfg, g, s, task):                # one thread: once every rank's rows of the head are here
        wait_until(g.arrived, div(task.row, g.group), i32(g.epoch * g.world_size * g.parts))
        Attention.loader(cfg, g, s, task)

    @staticmethod
    def storer(cfg, g, s, task):
        Attention.storer(cfg, g, s, task)
        store_async_wait(0)                     # written at the peer, before this block tells that it has done

    @staticmethod
    def communicator(cfg, g, s, task):          # one thread: g.depth chunks of a head, through shared memory to a peer
        part, step = mod(task.id, g.parts), div(task.id, g.parts)
        pair, peer = div(step, g.world_size), mod(i32(g.rank + mod(step, g.world_size)), g.world_size)
        for k in range(g.depth):
            row, (_, phase) = i32(mod(part, g.bands) * g.depth + k), ring(i32(task.step + k), 1)
            expect(s.full[task.part], s.mail[task.part])
            UlyssesAttention.take(cfg, g, s, task, div(part, g.bands), pair, row, peer)
            wait(s.full[task.part], phase)
            UlyssesAttention.post(cfg, g, s, task, div(part, g.bands), pair, row, peer)
            store_async_read_wait(0)            # read: the chunk may be overwritten
        store_async_wait(0)                     # written at the peer
        signal(g.arrived, pair, peer)

    @staticmethod
    def take(cfg, g, s, task, which, pair, row, peer):
        """A chunk of the which-th query head of a peer's head of K and V, of that head of K, or of V."""
        pairs = div(g.heads, g.group)           # of a batch
        batch, head = div(pair, pairs), i32(peer * pairs + mod(pair, pairs))
        if which < g.group:
            load_async(s.mail[task.part], g.own_q, (batch, head * g.group + which, row, 0), s.full[task.part])
        elif which == g.group:
            load_async(s.mail[task.part], g.own_k, (batch, head, row, 0), s.full[task.part])
        else:
            load_async(s.mail[task.part], g.own_v, (batch, head, row, 0), s.full[task.part])

    @staticmethod
    def post(cfg, g, s, task, which, pair, row, peer):
        """The chunk to the peer, where this rank's rows belong."""
        if which < g.group:
            store_async(g.mail_q, (pair * g.group + which, row, 0), s.mail[task.part], peer)
        elif which == g.group:
            store_async(g.mail_k, (pair, row, 0), s.mail[task.part], peer)
        else:
            store_async(g.mail_v, (pair, row, 0), s.mail[task.part], peer)


def ulysses_attention(world, q, k, v, *, causal=False, rows=None, scale=None, out=None, config=None, stream=None):
    """This rank's rows of attention over a sequence that is spread over ranks; collective. Between an exchange of rows for heads and one
    back every rank attends with its share of the heads over the whole sequence.

    Args:
        world: World of this rank; every rank calls with arrays of the same batch, heads, width, dtype and layout.
        q: (batch, heads, this rank's rows, width), as in ``attention``; k, v: (batch, heads of K and V, this rank's rows, width). Both
            numbers of heads are multiples of the number of ranks. Rank r has the r-th piece of the sequence.
        causal: every query sees the keys up to its own position.
        rows: of the whole sequence; as many on every rank if None. Pieces are those of ``numpy.array_split``.
        scale, out: as in ``attention``.
        config: UlyssesAttentionConfig; chosen if None. stream: as in ``gemm``; to be passed where two streams work at once, since
            calls of one shape share counters.

    Returns: O of this rank's rows, as one rank would compute it. One launch, and a copy out of memory that all ranks see. The world keeps
    symmetric memory for Q, K and V of this rank's heads over the whole sequence, and for the result.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError on every rank, before anything is launched; HangError if a
    rank does not come.
    """
    return attend_ulysses(UlyssesAttention, world, q, k, v, out, config, stream, causal=causal, rows=rows, scale=scale)

"""Attention: O = softmax(scale * Q @ K.T) @ V for every head, in one pass over K and V, and the log-sum-exp of the scores."""

from ..config import AttentionConfig
from ..primitives import (accumulator, arrive, as_float, as_operand, climb, div, exp2, expect, fence_async, fill, fill_rows, i32, least,
                          load_async, log2, mask, maximum, mma, mma_wait, mod, most, rescale, ring, row_max, row_shares, row_total, store,
                          store_async, store_async_read_wait, store_rows, tile_coord, wait)
from ..templates import LCS, attend
from ..tiles import Semaphore, Tile, shared


class Attention(LCS):
    """Tiles of Q over SMs. K and V come in blocks, the last first; a consumer multiplies Q with the next block of K while the tensor cores
    are still busy with its weights of the block before and V."""

    config = AttentionConfig
    tensors, kinds = ("Q", "K", "V", "O", "L"), {"L": "float32"}
    #: tiles: of Q in a head. lines: heads in all; heads: of a batch; group: query heads that share one head of K and V. together: heads
    #: walked together. keys: of a head; shift: row i sees keys 0 to i + shift. scale, slack: bits of float32.
    numbers = dict.fromkeys("tasks blocks tiles lines heads group together keys shift scale slack".split(), 1)
    helper_registers = 56

    @staticmethod
    def shared(cfg):
        block, tile = Tile((cfg.stages, cfg.kv, cfg.width), cfg.dtype, cfg.swizzle), (cfg.consumers, cfg.part_q, cfg.width)
        return shared(q=Tile(tile, cfg.dtype, cfg.swizzle), k=block, v=block, o=Tile(tile, cfg.dtype, cfg.swizzle, cfg.over),
                      q_full=Semaphore(1, by="loader"), q_empty=Semaphore(1, by="consumer"),
                      k_full=Semaphore(cfg.stages, by="loader"), k_empty=Semaphore(cfg.stages, by="consumer"),
                      v_full=Semaphore(cfg.stages, by="loader"), v_empty=Semaphore(cfg.stages, by="consumer"),
                      o_full=Semaphore(1, by="consumer"), o_empty=Semaphore(1, by="storer"))

    @staticmethod
    def place(cfg, g, number):
        """(head of all, tile, blocks of K and V) of a task. Causal tiles of unequal length: the longest first, and every other round of
        the SMs in the opposite order."""
        if cfg.causal:
            turn = div(number, g.blocks)
            if mod(turn, 2) == 1:
                number = i32(turn * g.blocks + least(g.tasks, i32(turn * g.blocks + g.blocks)) - 1 - number)
        line, tile = tile_coord(number, (g.lines, g.tiles), g.together)
        seen = g.keys
        if cfg.causal:
            tile = i32(g.tiles - 1 - tile)
            seen = least(seen, i32(tile * cfg.tile_q + cfg.tile_q + g.shift))
        return line, tile, most(div(most(i32(seen + cfg.kv - 1), 0), cfg.kv), 1)

    @staticmethod
    def steps(cfg, g, number):
        """Blocks of K and V that a task takes."""
        return Attention.place(cfg, g, number)[2]

    @staticmethod
    def loader(cfg, g, s, task):                # one thread: K before V, so that the next product can start
        line, _, blocks = Attention.place(cfg, g, task.id)
        batch, pair = div(line, g.heads), div(mod(line, g.heads), g.group)
        for i in range(blocks):
            stage, phase = ring(task.step + i, cfg.stages)
            wait(s.k_empty[stage], phase ^ 1)
            expect(s.k_full[stage], s.k[stage])
            load_async(s.k[stage], g.K, (batch, pair, blocks - 1 - i, 0), s.k_full[stage])
            if i == 0:
                Attention.load_q(cfg, g, s, task)
            wait(s.v_empty[stage], phase ^ 1)
            expect(s.v_full[stage], s.v[stage])
            load_async(s.v[stage], g.V, (batch, pair, blocks - 1 - i, 0), s.v_full[stage])

    @staticmethod
    def load_q(cfg, g, s, task):
        """A tile of Q, once the consumers have done with the last one, and the storer with the result that may lie there."""
        line, tile, _ = Attention.place(cfg, g, task.id)
        _, phase = ring(task.turn, 1)
        wait(s.q_empty[0], phase ^ 1)
        if not cfg.own_o:
            wait(s.o_empty[0], phase ^ 1)
        expect(s.q_full[0], s.q)
        load_async(s.q, g.Q, (div(line, g.heads), mod(line, g.heads), tile, 0), s.q_full[0])

    @staticmethod
    def weigh(cfg, g, scores, top, total):
        """(weights of a block as an operand, new maxima, new sums, what old sums are to be multiplied by)."""
        scale = as_float(g.scale)
        new = climb(top, row_max(scores), as_float(g.slack))
        shrink = exp2((top - new) * scale)
        weights = exp2(scores * scale - new * scale)
        return as_operand(weights, cfg.dtype), new, total * shrink + row_shares(weights), shrink

    @staticmethod
    def consumer(cfg, g, s, task):              # a warpgroup: queries task.part of the tile
        line, tile, blocks = Attention.place(cfg, g, task.id)
        first = i32(tile * cfg.tile_q + task.part * cfg.part_q)
        _, lap = ring(task.turn, 1)
        o, top, total = fill(cfg.part_q, cfg.width, 0.0), fill_rows(cfg.part_q, -1e30), fill_rows(cfg.part_q, 0.0)
        stage, phase = ring(task.step, cfg.stages)
        wait(s.q_full[0], lap)
        wait(s.k_full[stage], phase)
        scores = mma(accumulator(cfg.part_q, cfg.kv), s.q[task.part], s.k[stage], False, True)
        scores = mma_wait(scores, 0)
        arrive(s.k_empty[stage])
        start = i32((blocks - 1) * cfg.kv)
        if start + cfg.kv > g.keys:
            scores = mask(scores, g.keys - 1 - start)
        if cfg.causal:
            scores = mask(scores, first + g.shift - start, 1)
        p, top, total, shrink = Attention.weigh(cfg, g, scores, top, total)
        for i in range(1, blocks):
            before, past = stage, phase
            stage, phase = ring(task.step + i, cfg.stages)
            wait(s.k_full[stage], phase)
            scores = mma(accumulator(cfg.part_q, cfg.kv), s.q[task.part], s.k[stage], False, True)
            wait(s.v_full[before], past)
            o = mma(o, p, s.v[before])
            scores = mma_wait(scores, 1)        # the weights of this block are computed under the product above
            arrive(s.k_empty[stage])
            start = i32((blocks - 1 - i) * cfg.kv)
            if cfg.causal:
                if start + cfg.kv - 1 > first + g.shift:
                    scores = mask(scores, first + g.shift - start, 1)
            new, top, total, shrink = Attention.weigh(cfg, g, scores, top, total)
            o = mma_wait(o, 0, p, new, total)
            arrive(s.v_empty[before])
            o = rescale(o, shrink)
            p = new
        arrive(s.q_empty[0])
        wait(s.v_full[stage], phase)
        o = mma(o, p, s.v[stage])
        o = mma_wait(o, 0, p)
        arrive(s.v_empty[stage])
        total = row_total(total)
        if cfg.own_o:
            wait(s.o_empty[0], lap ^ 1)
        store(s.o[task.part], o / maximum(total, 1e-30))
        fence_async(s.o[task.part])
        arrive(s.o_full[0])
        store_rows(g.L, (line, div(first, cfg.part_q)), (top * as_float(g.scale) + log2(total)) * 0.6931471805599453)

    @staticmethod
    def storer(cfg, g, s, task):                # one thread: shared -> global
        line, tile, _ = Attention.place(cfg, g, task.id)
        _, lap = ring(task.turn, 1)
        wait(s.o_full[0], lap)
        store_async(g.O, (div(line, g.heads), mod(line, g.heads), tile, 0), s.o)
        store_async_read_wait(0)
        arrive(s.o_empty[0])


def attention(world, q, k, v, *, causal=False, scale=None, shift=0, out=None, lse=None, config=None, stream=None):
    """O = softmax(scale * Q @ K.T) @ V and the log-sum-exp of the scaled scores, for every head, on this rank's device.

    Args:
        world: World of this rank (any size: nothing is communicated).
        q: (batch, heads, queries, width), bfloat16 or float16; NumPy on the interpreter, else CuPy, torch or any CUDA array. Elements
            of a row are contiguous, everything else may lie any multiple of 16 bytes apart: an array (batch, queries, heads, width)
            is passed as its view ``transpose(1, 2)`` at no cost. width: up to 256, a multiple of 8; 64, 128, 192 and 256 waste nothing.
        k, v: (batch, heads of K and V, keys, width) of the same dtype; every one of their heads serves heads / heads of K and V
            query heads that follow each other.
        causal: query i sees keys 0 to i + shift; otherwise all. shift = 0 aligns the beginnings, as torch does, shift = keys - queries
            the ends.
        scale: positive number; 1 / sqrt(width) if None.
        out: like q; made by q's library, with q's layout, if None. lse: (batch, heads, queries) float32, contiguous; made if None.
        config: AttentionConfig; chosen by width if None. stream: as in ``gemm``.

    Returns: (O, lse). Softmax is computed in float32, weights are rounded to the dtype for the product with V, O is rounded once; the
    same inputs give the same bits. A query that sees no key has O = 0 and lse = -inf. A NaN in q spoils its row, one in k the rows
    that see it, one in v its column in every tile of queries that any of them sees.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError, before anything is launched.
    """
    return attend(Attention, world, q, k, v, out, lse, config, stream, causal=causal, scale=scale, shift=shift)

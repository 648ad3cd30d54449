"""Attention: O = softmax(scale * Q @ K.T) @ V for every head, in one pass over K and V, and the log-sum-exp of the scores."""

from ..config import AttentionConfig
from ..primitives import (accumulator, arrive, as_float, as_operand, climb, div, exp2, expect, fence_async, fill, fill_rows, i32, least,
                          load_async, log2, mask, maximum, minimum, mma, mma_wait, mod, most, rescale, ring, row_max, row_numbers,
                          row_shares, row_total, store, store_async, store_async_read_wait, store_rows, tile_coord, wait)
from ..templates import LCS, attend, repeated
from ..templates.drivers import arranged
from ..tiles import Semaphore, Tile, shared


class Attention(LCS):
    """Tiles of Q over SMs. K and V come in blocks, the last first; a consumer multiplies Q with the next block of K while the tensor cores
    are still busy with its weights of the block before and V. A task's ``row`` is a head of all, ``col`` a tile of it, ``first`` the
    tile's first query."""

    config = AttentionConfig
    tensors, kinds = ("Q", "K", "V", "O", "L", "order"), {"L": "float32", "order": "int32"}
    #: tiles: of Q in a head. lines: heads in all; heads: of a batch; group: query heads that share one head of K and V. together: heads
    #: walked together. queries, keys: of a head; shift: query i lies at position i + shift, from ``bend`` on jump further. scale,
    #: slack: bits of float32. chunk, extra: a sequence spread over ranks is cut into pieces of chunk rows, the first extra one longer;
    #: or keys are cut into ``splits`` parts of chunk, and a task's ``first`` is its part's first key. turns: tasks of a block at most;
    #: listed: whether ``order`` has its list.
    numbers = dict.fromkeys(("tasks blocks tiles lines heads group together queries keys shift bend jump scale slack chunk extra "
                             "splits turns listed").split(), 1)
    helper_registers = 56

    @staticmethod
    def shared(cfg):
        block, tile = Tile((cfg.stages, cfg.kv, cfg.width), cfg.dtype, cfg.swizzle), (cfg.q_stages, cfg.consumers, cfg.part_q, cfg.width)
        return shared(q=Tile(tile, cfg.dtype, cfg.swizzle), k=block, v=block, o=Tile(tile, cfg.o_dtype, cfg.swizzle, cfg.over),
                      q_full=Semaphore(cfg.q_stages, by="loader"),
                      k_full=Semaphore(cfg.stages, by="loader"), k_empty=Semaphore(cfg.stages, by="consumer"),
                      v_full=Semaphore(cfg.stages, by="loader"), v_empty=Semaphore(cfg.stages, by="consumer"),
                      o_full=Semaphore(cfg.q_stages, by="consumer"), o_empty=Semaphore(cfg.q_stages, by="storer"))

    @classmethod
    def driver(kernel, role):
        """Blocks have the tasks that the call's list says, if it has one."""
        return arranged if "order" in kernel.tensors else super().driver(role)

    # ---- who sees what
    @staticmethod
    def span(cfg, g, source):
        """(a, m, b, n): the keys of a source are m at positions a, a + 1, ... and n at positions b, b + 1, ..., in this order."""
        if cfg.spread:
            a = i32(source * g.chunk + least(source, g.extra))
            m = i32(g.chunk + (source < g.extra))
            other = i32(2 * g.world_size - 1 - source) if cfg.zigzag else source
            b = i32(other * g.chunk + least(other, g.extra))
            n = i32(g.chunk + (other < g.extra)) if cfg.zigzag else i32(0)
            return a, m, b, n
        return i32(0), i32(g.keys), i32(0), i32(0)

    @staticmethod
    def reach(cfg, g, query, source):
        """How many keys of a source a query sees: the first ones, in the order of the source."""
        a, m, b, n = Attention.span(cfg, g, source)
        if cfg.causal:
            end = i32(query + g.shift + 1)
            if cfg.zigzag:
                end = i32(end + (g.jump if query >= g.bend else i32(0)))
            return i32(least(most(i32(end - a), 0), m) + least(most(i32(end - b), 0), n))
        if cfg.splits:
            return i32(least(most(i32(g.keys - query), 0), g.chunk))
        return i32(m + n)

    @staticmethod
    def blocks(cfg, g, first, hop):
        """Blocks of K and V that a tile takes from the source that is so many hops away: at least one of its own."""
        return Attention.blocks_of(cfg, g, first, cfg.tile_q, hop)

    @staticmethod
    def blocks_of(cfg, g, first, rows, hop):
        """Of these, those that so many queries from ``first`` on see something of."""
        last = first if cfg.splits else least(i32(first + rows - 1), i32(g.queries - 1))
        return most(div(i32(Attention.reach(cfg, g, last, Attention.source(cfg, g, hop)) + cfg.kv - 1), cfg.kv), i32(hop == 0))

    @staticmethod
    def source(cfg, g, hop):
        """The rank whose keys come in that turn: this one's own, then those of the rank before, and so on round."""
        return mod(i32(g.rank + g.world_size - hop), g.world_size) if cfg.spread else i32(0)

    @staticmethod
    def hide(cfg, g, scores, first, hop, start):
        """scores of queries from ``first`` on with keys from ``start`` on, -inf where a query does not see a key."""
        source = Attention.source(cfg, g, hop)
        if cfg.causal:
            a, m, b, n = Attention.span(cfg, g, source)
            query = row_numbers(cfg.part_q) + first
            end = query + (g.shift + 1)
            if cfg.zigzag:
                end = end + minimum(maximum(query - (g.bend - 1), 0), 1) * g.jump
            seen = minimum(maximum(end - a, 0), m) + minimum(maximum(end - b, 0), n)
            return mask(scores, seen - (start + 1))
        return mask(scores, i32(Attention.reach(cfg, g, first, source) - 1 - start))

    # ---- which tasks
    @staticmethod
    def tile(cfg, g, number):
        """(head of all, tile of it) of a task. Causal tiles have unequal lengths: the longest first."""
        line, tile = tile_coord(number, (g.lines, g.tiles), g.together)
        if cfg.causal:
            tile = i32(g.tiles - 1 - tile)
        return line, tile

    @staticmethod
    def locate(cfg, g, task):
        """Where a task's tile lies."""
        line, tile = Attention.tile(cfg, g, task.id)
        return line, tile, i32(tile * cfg.tile_q), None

    @staticmethod
    def steps(cfg, g, number):
        """Blocks of K and V that a task takes."""
        first, total = i32(Attention.tile(cfg, g, number)[1] * cfg.tile_q), i32(0)
        for hop in range(g.world_size if cfg.spread else i32(1)):
            total = i32(total + Attention.blocks(cfg, g, first, i32(hop)))
        return total

    # ---- roles
    @staticmethod
    def loader(cfg, g, s, task):                # one thread: K before V, so that the next product can start
        batch, pair = div(task.row, g.heads), div(mod(task.row, g.heads), g.group)
        count = Attention.blocks(cfg, g, task.first, i32(0))
        for i in range(count):
            stage, phase = ring(task.step + i, cfg.stages)
            wait(s.k_empty[stage], phase ^ 1)
            expect(s.k_full[stage], s.k[stage])
            load_async(s.k[stage], g.K, (batch, pair, count - 1 - i, 0), s.k_full[stage])
            if i == 0:
                Attention.load_q(cfg, g, s, task)
            wait(s.v_empty[stage], phase ^ 1)
            expect(s.v_full[stage], s.v[stage])
            load_async(s.v[stage], g.V, (batch, pair, count - 1 - i, 0), s.v_full[stage])

    @staticmethod
    def load_q(cfg, g, s, task):
        """A tile of Q, once the result that took the place of an earlier one has been stored."""
        stage, phase = ring(task.turn, cfg.q_stages)
        wait(s.o_empty[stage], phase ^ 1)
        expect(s.q_full[stage], s.q[stage])
        load_async(s.q[stage], g.Q, (div(task.row, g.heads), mod(task.row, g.heads), 0, 0), s.q_full[stage], task.first)

    @staticmethod
    def log_place(cfg, g, task, first):
        """Where the log-sum-exp of queries from ``first`` on belongs; of a part of the keys, where all parts of this call lie."""
        if cfg.splits:
            return i32((mod(g.epoch, 2) * g.lines + task.row) * g.splits + div(task.first, g.chunk)), task.col
        return task.row, div(first, cfg.part_q)

    @staticmethod
    def weigh(cfg, g, scores, top, total):
        """(weights of a block, new maxima, new sums, what old sums are to be multiplied by)."""
        scale = as_float(g.scale)
        new = climb(top, row_max(scores), as_float(g.slack))
        shrink = exp2((top - new) * scale)
        weights = exp2(scores * scale - new * scale)
        return weights, new, total * shrink + row_shares(weights), shrink

    @staticmethod
    def pass_over(cfg, g, s, task, first):
        """Give back the first blocks of a tile, of which the queries from ``first`` on see nothing. Returns how many they were."""
        n = i32(Attention.blocks(cfg, g, task.first, i32(0)) - Attention.blocks_of(cfg, g, first, cfg.part_q, i32(0)))
        for i in range(n):
            stage, phase = ring(i32(task.step + i), cfg.stages)
            wait(s.k_full[stage], phase)
            arrive(s.k_empty[stage])
            wait(s.v_full[stage], phase)
            arrive(s.v_empty[stage])
        return n

    @staticmethod
    def consumer(cfg, g, s, task):              # a warpgroup: queries task.part of the tile
        o, top, total = fill(cfg.part_q, cfg.width, 0.0), fill_rows(cfg.part_q, -1e30), fill_rows(cfg.part_q, 0.0)
        first, (place, lap) = i32(task.first + task.part * cfg.part_q), ring(task.turn, cfg.q_stages)
        passed = Attention.pass_over(cfg, g, s, task, first) if cfg.causal else i32(0)
        step = i32(task.step + passed)
        stage, phase = ring(step, cfg.stages)
        wait(s.q_full[place], lap)
        wait(s.k_full[stage], phase)
        scores = mma(accumulator(cfg.part_q, cfg.kv), s.q[place][task.part], s.k[stage], False, True)
        scores = mma_wait(scores, 0)
        arrive(s.k_empty[stage], scores)
        scores = Attention.hide(cfg, g, scores, first, i32(0), i32((Attention.blocks(cfg, g, task.first, i32(0)) - 1 - passed) * cfg.kv))
        weights, top, total, shrink = Attention.weigh(cfg, g, scores, top, total)
        p = as_operand(weights, cfg.dtype)
        for hop in range(g.world_size if cfg.spread else i32(1)):
            count = Attention.blocks(cfg, g, task.first, i32(hop))
            clear = Attention.reach(cfg, g, first, Attention.source(cfg, g, i32(hop)))      # keys that all queries of this part see
            for i in range(i32(passed + 1) if hop == 0 else i32(0), count):
                before, past = ring(step, cfg.stages)
                step = i32(step + 1)
                stage, phase = ring(step, cfg.stages)
                wait(s.k_full[stage], phase)
                scores = mma(accumulator(cfg.part_q, cfg.kv), s.q[place][task.part], s.k[stage], False, True)
                wait(s.v_full[before], past)
                o = mma(o, p, s.v[before])
                scores = mma_wait(scores, 1)    # the weights of this block are computed under the product above
                arrive(s.k_empty[stage], scores)
                start = i32((count - 1 - i) * cfg.kv)
                if (cfg.causal or cfg.spread) and start + cfg.kv > clear:
                    scores = Attention.hide(cfg, g, scores, first, i32(hop), start)
                weights, top, total, shrink = Attention.weigh(cfg, g, scores, top, total)
                o = mma_wait(o, 0, p, total)
                arrive(s.v_empty[before], o)
                o = rescale(o, shrink)
                p = as_operand(weights, cfg.dtype)      # not before: an operand of a product that follows is defined after this one
        stage, phase = ring(step, cfg.stages)
        wait(s.v_full[stage], phase)
        o = mma(o, p, s.v[stage])
        o = mma_wait(o, 0, p)
        arrive(s.v_empty[stage], o)
        total = row_total(total)
        store_rows(g.L, Attention.log_place(cfg, g, task, first), (top * as_float(g.scale) + log2(total)) * 0.6931471805599453)
        store(s.o[place][task.part], o / maximum(total, 1e-30))
        fence_async(s.o[place][task.part])
        arrive(s.o_full[place], s.o[place][task.part])

    @staticmethod
    def storer(cfg, g, s, task):                # one thread: shared -> global
        place, lap = ring(task.turn, cfg.q_stages)
        wait(s.o_full[place], lap)
        store_async(g.O, (div(task.row, g.heads), mod(task.row, g.heads), task.col, 0), s.o[place], task.peer)
        store_async_read_wait(0)
        arrive(s.o_empty[place])


@repeated("q", "k", "v", "out", "lse", result="out, lse")
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

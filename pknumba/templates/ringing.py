"""Calls of attention over a sequence that is spread over ranks: who has which rows, and the memory that K and V travel through."""

from dataclasses import fields

from .. import config as configs
from ..errors import ShapeError
from ..tiles import ITEMSIZE
from .agreement import agreed, least_sms
from .attending import AttentionCall, check, fitted, remembered
from .call import Matrix, Workspace, check_sms

#: Positions are compared in float32, which counts that far.
MOST_ROWS = 1 << 24


def ring_rows(rows, size, rank, zigzag=False):
    """Indices (NumPy) of the rows of a sequence that a rank has: its piece of ``size``, or with ``zigzag`` pieces rank and
    2 size - 1 - rank of twice as many. Pieces are those of ``numpy.array_split``."""
    import numpy as np
    pieces = np.array_split(np.arange(rows), 2 * size if zigzag else size)
    return np.concatenate([pieces[rank], pieces[2 * size - 1 - rank]]) if zigzag else pieces[rank]


def attend_ring(kernel, world, q, k, v, out, lse, config, stream, *, causal, zigzag, rows, scale):
    """(O, lse) by ``kernel``. Arguments, result and errors are those of the public operators."""
    zigzag = bool(causal) if zigzag is None else zigzag
    if getattr(world, "spans", False):
        from .. import nodes
        return nodes.attend_ring(kernel, world, q, k, v, out, lse, config, stream, causal, zigzag, rows, scale)
    return remembered(RingCall, kernel, world, q, k, v, out, lse, config, stream, causal=causal, scale=scale, zigzag=zigzag, rows=rows)


class RingCall(AttentionCall):
    """Attention of these arrays and those of the other ranks."""

    def _found(self, heads, config, causal, scale, zigzag=False, rows=None):
        """The Heads, once the ranks agree."""
        def checked():
            found = check(self.name, self.kernel, self.world, heads, config, causal, scale, 0)
            self._check_share(found, zigzag, rows)
            self._check_more(found)
            return found
        if self.world.size == 1:
            return checked()
        return agreed(self.world, self.name, self.kernel, checked, lambda found: {
            "q": self._common(found.q.shape), "k": self._common(found.k.shape), "rows": self.rows, "dtype": found.q.dtype,
            "causal": bool(causal), "zigzag": zigzag, "scale": repr(scale), "config": repr(config), **self._terms(found)})

    def _check_more(self, found):
        """Raise if something breaks a rule of this operator alone."""

    def _terms(self, found):
        """What else ranks must agree on."""
        return {}

    @staticmethod
    def _common(shape):
        return [shape[0], shape[1], shape[3]]

    def _check_share(self, found, zigzag, rows):
        """Raise ShapeError unless this rank has the rows that it must have of the whole sequence."""
        world, mine = self.world, found.q.shape[2]
        if zigzag not in (False, True):
            raise ShapeError(f"{self.name}: zigzag = {zigzag!r}. It is whether ranks have two pieces each. Pass True, False or None.")
        if rows is not None and (type(rows) is not int or rows < 0):
            raise ShapeError(f"{self.name}: rows = {rows!r}. It is the number of rows of all ranks together. Pass an int, or None.")
        self.rows = mine * world.size if rows is None else rows
        if self.rows >= MOST_ROWS:
            raise ShapeError(f"{self.name}: a sequence of {self.rows} rows. A call counts fewer than 2^24. Split it.", rows=self.rows)
        self.shares = [self._share(r, zigzag) for r in range(world.size)]
        if mine != self.shares[world.rank] or found.k.shape[2] != mine:
            raise ShapeError(f"{self.name}: q has {mine} rows and k {found.k.shape[2]}. Rank {world.rank}'s share of {self.rows} has "
                             f"{self.shares[world.rank]}. Take those of ring_rows({self.rows}, {world.size}, {world.rank}, {zigzag}).")

    def _share(self, rank, zigzag):
        """How many rows a rank has."""
        piece, extra = divmod(self.rows, 2 * self.world.size if zigzag else self.world.size)
        if not zigzag:
            return piece + (rank < extra)
        return 2 * piece + (rank < extra) + (2 * self.world.size - 1 - rank < extra)

    def _nothing(self, found):
        return 0 in (*found.q.shape[:2], self.rows)

    def _config(self, config, found, causal, zigzag=False, **_):
        """The configuration given, or the best one; the same on every rank, whatever its device."""
        if self.world.size == 1:
            self.kernel = self.kernel.alone
            config = config and self.kernel.config(**{f.name: getattr(config, f.name) for f in fields(self.kernel.config)})
            return super()._config(config, found, causal)
        sms = least_sms(self.world)
        if config is None:
            config = configs.attention_config(found.q.shape[3], family=self.kernel.config)
            config = config.replace(comm_sms=configs.moving_sms(*self._work(found, causal), sms))
        check_sms(self.kernel, config, sms)
        return fitted(config, found, causal).replace(**{"zigzag": zigzag} if self.kernel.config.spread else {})

    def _work(self, found, causal):
        """(operations, bytes sent) of the rank that has most."""
        (b, h, _, d), most = found.q.shape, max(self.shares)
        moved = 2 * b * found.k.shape[1] * most * d * ITEMSIZE[found.q.dtype] * (self.world.size - 1)
        return (2 if causal else 4) * b * h * most * self.rows * d, moved

    def _keys(self, found):
        return self.rows

    def _numbers(self, cfg, found, scale, zigzag=False, **_):
        """What ``g`` holds besides rank and world size."""
        numbers = super()._numbers(cfg, found, scale)
        if self.world.size == 1:
            return numbers
        (b, h, _, _), pairs, most, size = found.q.shape, found.k.shape[0] * found.k.shape[1], max(self.shares), self.world.size
        chunk, extra = divmod(self.rows, 2 * size if zigzag else size)
        starts = [piece * chunk + min(piece, extra) for piece in range(2 * size + 1)]
        early, bend, late = starts[self.world.rank], starts[self.world.rank + 1], starts[2 * size - 1 - self.world.rank]
        tiles = -(-most // cfg.tile_q)
        return {**numbers, **self._moved(cfg, tiles * b * h, 2, (size - 1) * pairs), "tiles": tiles, "chunk": chunk, "extra": extra,
                "shift": early, "bend": bend - early, "jump": late - bend, "pairs": pairs}

    def _moved(self, cfg, tasks, heads, steps):
        """Numbers of a rank's tasks and pieces.

        Args:
            heads: that are told of together; steps: how many times that many this rank moves.
        """
        most = max(self.shares)
        blocks = min(tasks, least_sms(self.world) - cfg.comm_sms)
        depth = min(cfg.depth, -(-most // cfg.mail_rows))
        bands = -(-most // (cfg.mail_rows * depth))
        return {"tasks": tasks, "blocks": blocks, "turns": -(-tasks // max(1, blocks)), "bands": bands, "depth": depth,
                "parts": heads * bands, "pieces": heads * bands * steps, "workers": blocks + cfg.comm_sms * cfg.movers}

    def _workspace(self, cfg, numbers, found):
        """Counters, and memory for K and V of all ranks, each rank's rows after those of the rank before."""
        if self.world.size == 1:
            return super()._workspace(cfg, numbers, found)
        (b, p, _, d), dtype = found.k.shape, found.k.dtype
        key = "workspace", self.kernel, cfg, self.rows, b, p, d, self.stream_key
        if key not in self.world.cache:
            made = Workspace(self.kernel, self.world, cfg, self.world.size * numbers["pairs"])
            made.memory = [self.world.symmetric((b * p, self.rows + 1, d), dtype) for _ in "kv"]
            self.world.cache[key] = made
            self.first = True
        return self.world.cache[key]

    def _all_matrices(self, found, workspace):
        """The rank's own arrays; where the rows of every rank lie in its memory; where its rows belong in every rank's."""
        own = super()._all_matrices(found, workspace)
        if self.world.size == 1:
            return own
        rank, ranks = self.world.rank, range(self.world.size)
        starts = [sum(self.shares[:r]) for r in ranks]
        k, v = workspace.memory
        mine = [(rank, starts[r], self.shares[r]) for r in ranks]
        theirs = [(r, starts[rank], self.shares[rank]) for r in ranks]
        return {**own, "far_k": rows_of_heads(self.world, k, mine), "far_v": rows_of_heads(self.world, v, mine),
                "mail_k": rows_of_heads(self.world, k, theirs), "mail_v": rows_of_heads(self.world, v, theirs)}


def rows_of_heads(world, array, spots):
    """A Matrix (heads, rows, columns) whose part of rank r is rows of a symmetric array in some rank's memory.

    Args:
        spots: for every rank r (rank that has the memory, first row, number of rows). On a device a part without rows is the array's
            last row, which must be one that nobody reads.
    """
    if world.executor == "interpreter":
        return Matrix(arrays=[array.peer(owner)[:, first:first + rows] for owner, first, rows in spots])
    (heads, height, d), (step, pitch, _) = array.shape, array.strides
    targets = tuple((array.pointers[owner] + (first if rows else height - 1) * pitch, rows or 1) for owner, first, rows in spots)
    return Matrix(targets[world.rank][0], spots[world.rank][2], d, pitch, array.dtype, targets=targets, outer=((heads, step),))


__all__ = ["attend_ring", "ring_rows", "rows_of_heads", "RingCall"]

"""Calls of attention that exchange rows of a sequence for heads and back: the memory of all that travels, and copies of the result."""

from ..errors import ShapeError
from ..tiles import ITEMSIZE
from .attending import matrices, remembered
from .call import Matrix, Workspace
from .ringing import RingCall, rows_of_heads


def attend_ulysses(kernel, world, q, k, v, out, config, stream, *, causal, rows, scale):
    """O by ``kernel``. Arguments, result and errors are those of the public operator."""
    return remembered(UlyssesCall, kernel, world, q, k, v, out, False, config, stream, causal=causal, scale=scale, rows=rows)[0]


class UlyssesCall(RingCall):
    """Attention with this rank's heads, of these arrays and those of the other ranks."""

    def _between(self, out):
        """Whether the result's heads lie between its rows; where a rank has too few to tell, they do not."""
        return min(self.shares) > 1 and out.shape[1] > 1 and out.strides[1] < out.strides[2]

    def _check_more(self, found):
        """Raise ShapeError unless every rank can have as many heads."""
        for label, n in (("query heads", found.q.shape[1]), ("heads of k and v", found.k.shape[1])):
            if n % self.world.size:
                raise ShapeError(f"{self.name}: {n} {label} for {self.world.size} ranks. Every rank has equally many. Use ring_attention, "
                                 "or a number of ranks that divides them.", heads=n)

    def _terms(self, found):
        return {"layout of out": "heads between rows" if self._between(found.out) else "rows of heads"}

    def _work(self, found, causal):
        """(operations, bytes sent) of a rank."""
        (b, h, _, d), size = found.q.shape, self.world.size
        moved = b * (h + 2 * found.k.shape[1]) * max(self.shares) * d * ITEMSIZE[found.q.dtype] * (size - 1) // size
        return (2 if causal else 4) * b * h // size * self.rows ** 2 * d, moved

    def _numbers(self, cfg, found, scale, **_):
        """What ``g`` holds besides rank and world size. Heads are this rank's, keys those of the whole sequence."""
        numbers, size = super(RingCall, self)._numbers(cfg, found, scale), self.world.size
        if size == 1:
            return numbers
        b, h, p = found.q.shape[0], found.q.shape[1] // size, found.k.shape[1] // size
        tiles, group, (chunk, extra) = size * -(-max(self.shares) // cfg.tile_q), h // p, divmod(self.rows, size)
        together = max(group, min(numbers["together"], -(-b * h // 4))) if cfg.causal else 1
        return {**numbers, **self._moved(cfg, tiles * b * h, group + 2, size * b * p), "tiles": tiles, "lines": b * h, "heads": h,
                "together": together, "queries": self.rows, "chunk": chunk, "extra": extra, "pairs": b * p}

    def _workspace(self, cfg, numbers, found):
        """Counters, and memory: of Q, K, V with this rank's heads and everybody's rows, and of the result with everybody's heads."""
        if self.world.size == 1:
            return super()._workspace(cfg, numbers, found)
        world, (b, h, _, d), p, dtype = self.world, found.q.shape, found.k.shape[1], found.q.dtype
        key = "workspace", self.kernel, cfg, self.rows, b, h, p, d, self._between(found.out), self.stream_key
        if key not in world.cache:
            made = Workspace(self.kernel, world, cfg, numbers["pairs"])
            made.memory = [world.symmetric((b * n // world.size, self.rows + 1, d), dtype) for n in (h, p, p)]
            most = max(self.shares) + 1
            made.result = world.symmetric((b, most, h, d) if self._between(found.out) else (b, h, most, d), dtype)
            world.cache[key], self.first = made, True
        return world.cache[key]

    def _all_matrices(self, found, workspace):
        """This rank's own arrays; what it attends to; where its rows and its results belong in every rank's memory."""
        own = super(RingCall, self)._all_matrices(found, workspace)
        if self.world.size == 1:
            return own
        world, rank, batch = self.world, self.world.rank, found.q.shape[0]
        starts = [sum(self.shares[:r]) for r in range(world.size)]
        theirs = [(r, starts[rank], self.shares[rank]) for r in range(world.size)]
        mail = {f"mail_{x}": rows_of_heads(world, array, theirs) for x, array in zip("qkv", workspace.memory)}
        mine = {x.upper(): self._whole(array, batch) for x, array in zip("qkv", workspace.memory)}
        self.after.append(self._copy_back(workspace.result, found.out, self._between(found.out)))
        heads = batch * found.q.shape[1] // world.size
        return {**mine, "O": self._results(workspace.result, found), "L": self._lines(False, heads), "order": own["order"], **mail,
                "own_q": own["Q"], "own_k": own["K"], "own_v": own["V"]}

    def _whole(self, array, batch):
        """This rank's heads of memory (heads, rows + 1, width) over the whole sequence, as (batch, heads, rows, width)."""
        heads, d = array.shape[0] // batch, array.shape[2]
        if self.world.executor == "interpreter":
            return self._own(array.local[:, :self.rows].reshape(batch, heads, self.rows, d))
        step, pitch, size = array.strides
        return matrices(array.pointer, (batch, heads, self.rows, d), (heads * step, step, pitch, size), array.dtype)

    def _results(self, array, found):
        """Where this rank's heads of the rows of rank r belong, in r's memory."""
        world, (b, h, _, d), between = self.world, found.q.shape, self._between(found.out)
        share, first = h // world.size, h // world.size * world.rank
        if world.executor == "interpreter":
            views = [array.peer(r).swapaxes(1, 2) if between else array.peer(r) for r in range(world.size)]
            return Matrix(arrays=[x[:, first:first + share, :n] for x, n in zip(views, self.shares)])
        steps = [array.strides[i] for i in ((0, 2, 1, 3) if between else (0, 1, 2, 3))]
        spare = max(self.shares) * steps[2]      # a row that nobody reads
        targets = tuple((array.pointers[r] + first * steps[1] + (0 if n else spare), n or 1) for r, n in enumerate(self.shares))
        return matrices(targets[world.rank][0], (b, share, targets[world.rank][1], d), steps, array.dtype)._replace(targets=targets)

    def _copy_back(self, array, out, between):
        """A function that copies this rank's rows from symmetric memory to ``out``."""
        if self.world.executor == "interpreter":
            def copy(stream):
                source = array.local.swapaxes(1, 2) if between else array.local
                out.owner[...] = source[:, :, :out.shape[2]]
            return copy
        from ..runtime import driver
        jobs = list(_jobs(array, out, between))

        def copies(stream):
            for job in jobs:
                driver.copy_2d(*job, stream)
        return copies


def _jobs(array, out, between):
    """(target, its pitch, source, its pitch, bytes of a row, rows) of copies that make ``out``: one where its layout is plain."""
    (b, h, s, d), size = out.shape, ITEMSIZE[out.dtype]
    inner, lines = (h, b) if between else (1, b * h)
    plain = (s * h * d, d, h * d, 1) if between else (h * s * d, s * d, d, 1)
    own, width = array.strides[0 if between else 1], s * inner * d * size
    if all(n == 1 or step == p * size for n, step, p in zip(out.shape, out.strides, plain)):
        yield out.pointer, width, array.pointer, own, width, lines
        return
    for i in range(b):
        for j in range(h):
            source = array.pointer + i * array.strides[0] + j * array.strides[2 if between else 1]
            yield (out.pointer + i * out.strides[0] + j * out.strides[1], out.strides[2], source, array.strides[1 if between else 2],
                   d * size, s)


__all__ = ["attend_ulysses", "UlyssesCall"]

"""How a product of matrices is spread over ranks: what each rank gives and gets, and what memory they share for it.

A kernel names its form. ``m`` is always the number of rows of the whole product; a rank's share of them is what
``numpy.array_split`` gives: whole rows in order, the first ``m % size`` ranks one more than the others.
"""

import struct

from ..tiles import ITEMSIZE
from .call import Matrix, device_table

__all__ = ["share", "rows_of", "windows_of", "cut_of", "Whole", "Sliced", "Scattered", "Added", "Gathered"]


def share(m, size, rank):
    """(first row, number of rows) of a rank's share of m rows."""
    rows, extra = divmod(m, size)
    return rank * rows + min(rank, extra), rows + (rank < extra)


def rows_of(world, array, spots):
    """A Matrix whose part of rank r is rows of a symmetric array in some rank's memory.

    Args:
        spots: for every rank r (rank that has the memory, first row, number of rows). On a device a part without rows is the
            array's last row, which must be one that nobody reads.
    """
    return windows_of(world, array, [(owner, (first, 0), (rows, array.shape[1])) for owner, first, rows in spots])


def windows_of(world, array, spots):
    """A Matrix whose part of rank r is a window of a symmetric array in some rank's memory.

    Args:
        spots: for every rank r (rank that has the memory, (first row, first column), (rows, columns)). On a device a part without
            elements lies in the array's last row, which must be one that nobody reads; others begin on 16 bytes.
    """
    if world.executor == "interpreter":
        return Matrix(arrays=[array.peer(owner)[i:i + rows, j:j + cols] for owner, (i, j), (rows, cols) in spots])
    last, size = (array.shape[0] - 1) * array.pitch, ITEMSIZE[array.dtype]
    targets = tuple((array.pointers[owner] + (i * array.pitch + j * size if rows and cols else last), rows or 1, cols or 1)
                    for owner, (i, j), (rows, cols) in spots)
    table = device_table(world, struct.pack(f"<{world.size}Q", *(pointer for pointer, *_ in targets)))
    rows, cols = spots[world.rank][2]
    return Matrix(targets[world.rank][0], rows, cols or 1, array.pitch, array.dtype, table, targets=targets)


def cut_of(m, n, k, cfg):
    """Numbers of a product that is cut into tiles from its first row on. Tile rows are those of whole clusters: the last may be empty."""
    grid = -(-m // (cfg.tile_m * cfg.cluster)) * cfg.cluster, -(-n // cfg.tile_n)
    return {"grid": grid, "tasks": grid[0] * grid[1] * cfg.slices, "k_tiles": -(-k // (cfg.tile_k * cfg.slices))}


class Whole:
    """A rank has A (m, k) and gets C (m, n). ``operand``: name of the tensor that is this A."""

    operand = "A"

    @staticmethod
    def whole(given, world, rows):
        """Rows of the whole product, of which A has ``given``; ``rows`` is what the caller says, or None."""
        return given

    @staticmethod
    def given(m, world):
        """Rows of A that this rank has."""
        return m

    @staticmethod
    def gotten(m, world):
        """Rows of C that this rank gets."""
        return m

    @classmethod
    def result(form, m, n, world):
        """Shape of what this rank gets."""
        return form.gotten(m, world), n

    @staticmethod
    def numbers(m, n, k, cfg, world, sms):
        """What ``g`` holds besides rank and world size. ``sms``: that a rank may use, the same on every rank."""
        cut = cut_of(m, n, k, cfg)
        return {**cut, "blocks": min(cut["tasks"], sms)}

    @staticmethod
    def apart(n, cfg, world):
        """[(first column, first column in padded memory, columns)] of the parts of B that must begin on 16 bytes, where they do not."""
        return []

    # ---- of kernels that make the result in symmetric memory
    @staticmethod
    def shape(world, m, n):
        """Of the memory where the result is made, the same on every rank."""
        return m, n

    @staticmethod
    def direct(world, m, n):
        """Whether a symmetric array of the caller can be that memory."""
        return True

    @classmethod
    def shared(form, world, array, m, n, direct):
        """The Matrix C in that memory, or in the caller's array (``direct``)."""
        return windows_of(world, array, [(r, (0, 0), (m, n)) for r in range(world.size)])

    @staticmethod
    def parts(world, m, n):
        """What is copied to the caller's array: (place in the memory, place in the array, extent) of each part."""
        return [((0, 0), (0, 0), (m, n))]

    @staticmethod
    def signals(numbers, world):
        """How many counters of each kind a rank needs."""
        return numbers["tasks"]

    @staticmethod
    def memory(world, m, n, k, dtype):
        """Symmetric memory that all calls of one shape use, or None. Collective."""
        return None

    @staticmethod
    def room(cfg, numbers, world):
        """The same, of kernels whose memory is made for tiles."""
        return None

    @staticmethod
    def matrices(memory, m, n, world):
        """{name of a tensor: Matrix} beside A, B and what this rank gets."""
        return {}


class Sliced(Whole):
    """As Whole, by ``cfg.slices`` tasks for each tile, which leave what they have for each other in ``sums``."""

    @staticmethod
    def numbers(m, n, k, cfg, world, sms):
        """Grids are whole tiles, of whole clusters: the blocks of one wait for each other."""
        cut, each = cut_of(m, n, k, cfg), cfg.slices * cfg.cluster
        return {**cut, "blocks": min(cut["tasks"], sms) // each * each}

    @staticmethod
    def keeps(world, stream, cfg, numbers):
        """{name of a tensor: Matrix} of memory that calls on one stream use one after the other."""
        from .kept import Sums
        return {"sums": Sums(world, stream, numbers["tasks"] * cfg.tile_m, cfg.tile_n, (cfg.tile_m, cfg.parts, cfg.slices))}


class Scattered(Whole):
    """A rank has A (m, k) and gets its share of the rows of C, in ``out``. Rank r stores partial tiles to ``C``, whose part of
    rank p is the slot for r in p's memory; ``parts`` of this rank are the slots in its own, by source."""

    @staticmethod
    def gotten(m, world):
        """This rank's share."""
        return share(m, world.size, world.rank)[1]

    @staticmethod
    def numbers(m, n, k, cfg, world, sms):
        """``grid``: of the largest share; ``rows`` and ``extra``: what shares are made of; ``group``: tile rows of a share walked
        together."""
        rows, extra = divmod(m, world.size)
        cut = cut_of(-(-m // world.size), n, k, cfg)
        return {**cut, "tasks": cut["tasks"] * world.size, "rows": rows, "extra": extra, "group": max(1, cfg.group_m // world.size)}

    @staticmethod
    def memory(world, m, n, k, dtype):
        """A slot for every source, and a row that nobody reads."""
        return world.symmetric((world.size * -(-m // world.size) + 1, n), dtype)

    @staticmethod
    def matrices(memory, m, n, world):
        """``C`` and ``parts``."""
        slot, ranks = -(-m // world.size), range(world.size)
        rows = [share(m, world.size, r)[1] for r in ranks]
        return {"C": rows_of(world, memory, [(r, world.rank * slot, rows[r]) for r in ranks]),
                "parts": rows_of(world, memory, [(world.rank, r * slot, rows[world.rank]) for r in ranks])}


class Added(Scattered):
    """As Scattered, with one slot for all sources, to which tiles are added; it is zero between calls."""

    @staticmethod
    def memory(world, m, n, k, dtype):
        """The slot, and a row that nobody reads."""
        array = world.symmetric((-(-m // world.size) + 1, n), dtype)
        if world.executor == "interpreter":
            array.peer(world.rank)[...] = 0
        else:
            from ..runtime import driver
            driver.memset(array.pointer, 0, array.shape[0] * array.pitch, world.stream)
            driver.stream_synchronize(world.stream)
        return array

    @staticmethod
    def matrices(memory, m, n, world):
        """``C`` and ``parts``."""
        rows = [share(m, world.size, r)[1] for r in range(world.size)]
        return {"C": rows_of(world, memory, [(r, 0, rows[r]) for r in range(world.size)]),
                "parts": rows_of(world, memory, [(world.rank, 0, rows[world.rank])] * world.size)}


class Gathered(Whole):
    """A rank has its share of the rows of A, ``shard``, and gets C (m, n). Its peers store theirs to its ``A``; ``mail`` is where its own
    rows belong in each rank's ``A``."""

    operand = "shard"
    #: total: rows of A. first, mine: this rank's. rows, extra: what shares are made of. start: first tile row that begins in this rank's
    #: share. bands: of tile_m rows in a share. parts: pieces of a band, each depth chunks deep. skip: 1 if no band need be moved to
    #: this rank itself. pieces: of this rank. group: tile rows walked together. blocks: that compute. workers: storers and movers of
    #: a rank.
    layout = dict.fromkeys("total first mine rows extra start bands depth parts skip pieces group blocks workers".split(), 1)

    @staticmethod
    def whole(given, world, rows):
        """Shards have equal numbers of rows, unless the caller says how many there are."""
        return given * world.size if rows is None else rows

    @staticmethod
    def given(m, world):
        """This rank's share."""
        return share(m, world.size, world.rank)[1]

    @staticmethod
    def numbers(m, n, k, cfg, world, sms):
        """See ``layout``."""
        size, cut = world.size, cut_of(m, n, k, cfg)
        (rows, extra), (first, mine) = divmod(m, size), share(m, size, world.rank)
        bands, depth = -(-(rows + bool(extra)) // cfg.tile_m), min(cfg.depth, cut["k_tiles"])
        parts, skip = cfg.strips * -(-cut["k_tiles"] // depth), int(not extra and rows % cfg.tile_m == 0)
        comm = 0 if cfg.intra_sm else cfg.comm_sms
        blocks = min(cut["tasks"], sms - comm)
        return {**cut, "total": m, "first": first, "mine": mine, "rows": rows, "extra": extra, "bands": bands, "depth": depth,
                "start": -(-first // cfg.tile_m) % cut["grid"][0], "parts": parts, "skip": skip,
                "pieces": (size - skip) * bands * parts, "group": min(cfg.group_m, bands),
                "blocks": blocks, "workers": blocks + (comm or blocks) * cfg.movers}

    @staticmethod
    def signals(numbers, world):
        """One for each band of each rank."""
        return world.size * numbers["bands"]

    @staticmethod
    def memory(world, m, n, k, dtype):
        """All of A, and a row that nobody reads."""
        return world.symmetric((m + 1, k), dtype)

    @staticmethod
    def matrices(memory, m, n, world):
        """``A`` and ``mail``."""
        first, mine = share(m, world.size, world.rank)
        return {"A": rows_of(world, memory, [(r, 0, m) for r in range(world.size)]),
                "mail": rows_of(world, memory, [(r, first, mine) for r in range(world.size)])}

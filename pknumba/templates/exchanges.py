"""How a product is spread over ranks that exchange it: shares along one dimension, put one after the other along another."""

from .forms import Whole, cut_of, share, windows_of

__all__ = ["Exchanged", "RowsToRows", "ColumnsToRows", "ColumnsToColumns"]


class Exchanged(Whole):
    """A rank has A (m, k) and makes C (m, n), of which rank p gets the p-th share along dimension ``scatter``, and puts what it gets one
    after the other along dimension ``gather``. Each rank stores to every rank's result; a part of ``C`` is its place in it."""

    scatter, gather = 0, 1

    @classmethod
    def block(form, world, rank, m, n):
        """(rows, columns) of what every rank has for that rank."""
        extents = [m, n]
        extents[form.scatter] = share(extents[form.scatter], world.size, rank)[1]
        return tuple(extents)

    @classmethod
    def result(form, m, n, world):
        """Blocks of all ranks."""
        extents = list(form.block(world, world.rank, m, n))
        extents[form.gather] *= world.size
        return tuple(extents)

    @classmethod
    def numbers(form, m, n, k, cfg, world, sms):
        """``grid``: of the largest share; ``rows`` and ``extra``: what shares are made of; ``group``: tile rows of a share walked
        together; ``blocks``: that compute."""
        rows, extra = divmod((m, n)[form.scatter], world.size)
        if form.apart(n, cfg, world):
            rows, extra = _whole(form.block(world, 0, m, n)[1]), 0
        cut = cut_of(*form.block(world, 0, m, n), k, cfg)
        tasks = cut["tasks"] * world.size
        group = cfg.group_m if form.scatter else max(1, cfg.group_m // world.size)
        return {**cut, "tasks": tasks, "rows": rows, "extra": extra, "group": group, "blocks": min(tasks, sms)}

    @classmethod
    def apart(form, n, cfg, world):
        """The shares of the columns of a row-major B: the innermost coordinate of a bulk copy is a multiple of 16 bytes."""
        if form.scatter == 0 or cfg.b_transposed:
            return []
        shares = [share(n, world.size, r) for r in range(world.size)]
        if all(first % 8 == 0 for first, _ in shares):
            return []
        step = _whole(shares[0][1])
        return [(first, r * step, cols) for r, (first, cols) in enumerate(shares) if cols]

    @staticmethod
    def signals(numbers, world):
        """One for each rank."""
        return world.size

    @classmethod
    def shape(form, world, m, n):
        """Room for the largest blocks, which begin on 16 bytes, and a row that nobody reads."""
        rows, cols = form.block(world, 0, m, n)
        return (world.size * rows + 1, cols) if form.gather == 0 else (rows + 1, world.size * _whole(cols))

    @classmethod
    def direct(form, world, m, n):
        """If shares are equal and blocks begin on 16 bytes."""
        return (m, n)[form.scatter] % world.size == 0 and (form.gather == 0 or form.block(world, 0, m, n)[1] % 8 == 0)

    @classmethod
    def _place(form, world, rank, source, m, n, direct):
        """(row, column) of a source's block in a rank's memory."""
        rows, cols = form.block(world, rank, m, n)
        step = cols if direct else _whole(form.block(world, 0, m, n)[1])
        return (source * rows, 0) if form.gather == 0 else (0, source * step)

    @classmethod
    def shared(form, world, array, m, n, direct):
        """This rank's place in every rank's memory."""
        return windows_of(world, array, [(r, form._place(world, r, world.rank, m, n, direct), form.block(world, r, m, n))
                                         for r in range(world.size)])

    @classmethod
    def parts(form, world, m, n):
        """The block of every rank, all at once where they lie as in the result."""
        rows, cols = form.block(world, world.rank, m, n)
        if form.gather == 0 or cols == _whole(form.block(world, 0, m, n)[1]):
            whole = form.result(m, n, world)
            return [((0, 0), (0, 0), whole)] if 0 not in whole else []
        places = [(form._place(world, world.rank, q, m, n, False), (q * rows, 0) if form.gather == 0 else (0, q * cols), (rows, cols))
                  for q in range(world.size)]
        return places if rows and cols else []


def _whole(cols):
    """Columns up to the next block of 8: 16 bytes of 16-bit numbers."""
    return -(-cols // 8) * 8


class RowsToRows(Exchanged):
    """Shares of rows, one below the other."""
    scatter, gather = 0, 0


class ColumnsToRows(Exchanged):
    """Shares of columns, one below the other."""
    scatter, gather = 1, 0


class ColumnsToColumns(Exchanged):
    """Shares of columns, one beside the other."""
    scatter, gather = 1, 1

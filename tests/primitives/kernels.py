"""Tiny kernels of one rank; each block plays one task, so semaphores have one phase."""

from pknumba.primitives import (accumulator, add_panel, arrive, as_operand, cast, col_max, col_sum, div, exp2, expect, fence_async, fill,
                                fill_rows, i32, least, load, load_async, load_rows, log2, mask, maximum, minimum, mma, mma_wait, mod,
                                ring, row_max, row_sum, store, store_add_async, store_async, store_async_read_wait, store_async_wait,
                                store_max_async, store_min_async, store_rows, sync, tile_coord, turn_pass, turn_wait, wait)
from pknumba.tiles import Semaphore, Tile, shared

from .tiny import Tiny

__all__ = ["Numbers", "Through", "Twice", "FromRow", "Arithmetic", "Extremes", "Softmax", "Columns", "Constants", "FromRegisters",
           "FromShared", "StoreAdd", "StoreMin", "StoreMax", "Swap", "Turns"]


class Numbers(Tiny):
    """Row i of R holds, for each task, the i-th of some index arithmetic."""

    tensors, kinds, symmetric = ("R",), {"R": "float32"}, ("R",)

    @staticmethod
    def consumer(cfg, g, s, task):
        n = i32(task.id * 5 + 3)
        stage, phase = ring(n, g.grid[1])
        row, col = tile_coord(task.id, g.grid, 2)
        store_rows(g.R, (0, task.id), fill_rows(64, div(n, g.grid[1])))
        store_rows(g.R, (1, task.id), fill_rows(64, mod(n, g.grid[1])))
        store_rows(g.R, (2, task.id), fill_rows(64, least(n, 14)))
        store_rows(g.R, (3, task.id), fill_rows(64, stage * 2 + phase))
        store_rows(g.R, (4, task.id), fill_rows(64, row * 16 + col))


class Through(Tiny):
    """Y = X by tiles, through registers."""

    @staticmethod
    def shared(cfg):
        tile = Tile((cfg.rows, cfg.cols), cfg.dtype, cfg.swizzle)
        return shared(x=tile, y=tile, x_full=Semaphore(1, by="loader"), y_full=Semaphore(1, by="consumer"))

    @staticmethod
    def loader(cfg, g, s, task):
        expect(s.x_full[0], s.x)
        load_async(s.x, g.X, (task.id, 0), s.x_full[0])

    @staticmethod
    def consumer(cfg, g, s, task):
        wait(s.x_full[0], 0)
        store(s.y, load(s.x))
        fence_async(s.y)
        arrive(s.y_full[0])

    @staticmethod
    def storer(cfg, g, s, task):
        wait(s.y_full[0], 0)
        store_async(g.Y, (task.id, 0), s.y)
        store_async_read_wait(0)


class Twice(Through):
    """Y = 2 X, panel by panel: the tile is added to itself."""

    @staticmethod
    def consumer(cfg, g, s, task):
        wait(s.x_full[0], 0)
        store(s.y, add_panel(load(s.x), s.x, 0))
        fence_async(s.y)
        arrive(s.y_full[0])


class FromRow(Through):
    """The same from row 3 of X on."""

    @staticmethod
    def loader(cfg, g, s, task):
        expect(s.x_full[0], s.x)
        load_async(s.x, g.X, (task.id, 0), s.x_full[0], first_row=3)


class Arithmetic(Through):
    """Y = a formula of X, a row vector of it, and numbers: every operator with every kind of operand."""

    @staticmethod
    def consumer(cfg, g, s, task):
        wait(s.x_full[0], 0)
        x = load(s.x)
        r = row_sum(x)
        y = (x + x) * 0.5 - r + r * x
        y += 2
        y = (1.0 - y) + (r + 1) * -(r - x) - (2 * r)
        store(s.y, y / 4 + (x / (r * r + 1.0)) * 0.0)
        fence_async(s.y)
        arrive(s.y_full[0])


class Extremes(Through):
    """Y = min(max(X, 0), |row's largest|) rounded to bfloat16, above a causal mask; the rest is -1."""

    @staticmethod
    def consumer(cfg, g, s, task):
        wait(s.x_full[0], 0)
        x = load(s.x)
        top = row_max(x)
        y = minimum(maximum(x, 0.0), maximum(top, -top))
        y = mask(cast(y * 1.001, "bfloat16"), 3, 1)
        store(s.y, maximum(y, fill(cfg.rows, cfg.cols, -1.0)))
        fence_async(s.y)
        arrive(s.y_full[0])


class Softmax(Through):
    """Y = softmax over columns 0 .. R[1, 0] of X, R[0] = log2 of its denominators, as attention needs it."""

    tensors, kinds, symmetric = ("X", "Y", "R"), {"R": "float32"}, ("X", "Y", "R")

    @staticmethod
    def consumer(cfg, g, s, task):
        wait(s.x_full[0], 0)
        x = mask(load(s.x), cfg.cols - 5)
        m = maximum(row_max(x), fill_rows(cfg.rows, -1e30))
        e = exp2((x - m) * cfg.scale)
        total = row_sum(e)
        store(s.y, e / total)
        fence_async(s.y)
        arrive(s.y_full[0])
        before = load_rows(g.R, (1, task.id), cfg.rows)
        store_rows(g.R, (0, task.id), m * cfg.scale + log2(total) + before)


class Columns(Through):
    """Y = softmax over the rows of X, in each consumer's tile."""

    @staticmethod
    def shared(cfg):
        tile = Tile((cfg.consumers, cfg.rows, cfg.cols), cfg.dtype, cfg.swizzle)
        return shared(x=tile, y=tile, c=Tile((cfg.consumers, 8, cfg.cols), "float32", 32), x_full=Semaphore(1, by="loader"),
                      y_full=Semaphore(1, by="consumer"))

    @staticmethod
    def consumer(cfg, g, s, task):
        wait(s.x_full[0], 0)
        x = load(s.x[task.part])
        e = exp2((x - col_max(x, s.c[task.part])) * cfg.scale)
        store(s.y[task.part], e / col_sum(e, s.c[task.part]))
        fence_async(s.y[task.part])
        arrive(s.y_full[0])


class Constants(Through):
    """Y = 1.5 everywhere, plus the row vector 2."""

    @staticmethod
    def consumer(cfg, g, s, task):
        wait(s.x_full[0], 0)
        store(s.y, fill(cfg.rows, cfg.cols, 1.5) + fill_rows(cfg.rows, 2))
        fence_async(s.y)
        arrive(s.y_full[0])


class FromRegisters(Through):
    """Y = X @ B + X @ B, A in registers: X (rows, rows), B (rows, cols) or, switched, (cols, rows)."""

    tensors, symmetric = ("X", "B", "Y"), ("X", "B", "Y")

    @staticmethod
    def shared(cfg):
        b = (cfg.cols, cfg.rows) if cfg.switch else (cfg.rows, cfg.cols)
        span = min(128, 2 * b[1])
        return shared(x=Tile((cfg.rows, cfg.rows), cfg.dtype, cfg.swizzle), b=Tile(b, cfg.dtype, span),
                      y=Tile((cfg.rows, cfg.cols), cfg.dtype, min(128, 2 * cfg.cols)), x_full=Semaphore(1, by="loader"),
                      y_full=Semaphore(1, by="consumer"))

    @staticmethod
    def loader(cfg, g, s, task):
        expect(s.x_full[0], s.x, s.b)
        load_async(s.x, g.X, (task.id, 0), s.x_full[0])
        load_async(s.b, g.B, (0, 0), s.x_full[0])

    @staticmethod
    def consumer(cfg, g, s, task):
        wait(s.x_full[0], 0)
        a = as_operand(load(s.x), cfg.dtype)
        acc = mma(accumulator(cfg.rows, cfg.cols), a, s.b, False, b_transposed=cfg.switch)
        acc = mma(acc, a, s.b, b_transposed=cfg.switch)
        store(s.y, mma_wait(acc, 0, a))
        fence_async(s.y)
        arrive(s.y_full[0])


class FromShared(FromRegisters):
    """The same, A in shared memory."""

    @staticmethod
    def consumer(cfg, g, s, task):
        wait(s.x_full[0], 0)
        acc = mma(accumulator(cfg.rows, cfg.cols), s.x, s.b, add=False, b_transposed=cfg.switch)
        acc = mma_wait(mma(acc, s.x, s.b, True, cfg.switch), pending=0)
        store(s.y, acc, panel=0)
        fence_async(s.y)
        arrive(s.y_full[0])


class StoreAdd(Through):
    """Y += X."""

    @staticmethod
    def storer(cfg, g, s, task):
        wait(s.y_full[0], 0)
        store_add_async(g.Y, (task.id, 0), s.y)
        store_async_wait(0)


class StoreMin(Through):
    """Y = min(Y, X)."""

    @staticmethod
    def storer(cfg, g, s, task):
        wait(s.y_full[0], 0)
        store_min_async(g.Y, (task.id, 0), s.y)
        store_async_wait(0)


class StoreMax(Through):
    """Y = max(Y, X)."""

    @staticmethod
    def storer(cfg, g, s, task):
        wait(s.y_full[0], 0)
        store_max_async(g.Y, (task.id, 0), s.y)
        store_async_wait(0)


class Swap(Through):
    """Two consumers give each other their halves of the tile through shared memory."""

    @staticmethod
    def shared(cfg):
        tile = Tile((2, cfg.rows, cfg.cols), cfg.dtype, cfg.swizzle)
        return shared(x=tile, h=tile, y=tile, x_full=Semaphore(1, by="loader"), y_full=Semaphore(1, by="consumer"))

    @staticmethod
    def consumer(cfg, g, s, task):
        wait(s.x_full[0], 0)
        store(s.h[task.part], load(s.x[task.part]))
        sync(s)
        store(s.y[task.part], load(s.h[1 - task.part]))
        fence_async(s.y[task.part])
        arrive(s.y_full[0])


class Turns(Swap):
    """Two consumers in turns; each copies the tile of its task. Blocks play several tasks."""

    @staticmethod
    def shared(cfg):
        tile = Tile((2, cfg.rows, cfg.cols), cfg.dtype, cfg.swizzle)
        return shared(x=tile, y=tile, x_full=Semaphore(2, by="loader"), x_empty=Semaphore(2, by="consumer"),
                      y_full=Semaphore(2, by="consumer"), y_empty=Semaphore(2, by="storer"))

    @staticmethod
    def loader(cfg, g, s, task):
        i, phase = task.turn & 1, (task.turn >> 1) & 1
        wait(s.x_empty[i], phase ^ 1)
        expect(s.x_full[i], s.x[i])
        load_async(s.x[i], g.X, (task.id, 0), s.x_full[i])

    @staticmethod
    def consumer(cfg, g, s, task):
        i, phase = task.turn & 1, (task.turn >> 1) & 1
        turn_wait(s, task.turn)
        wait(s.x_full[i], phase)
        x = load(s.x[i])
        turn_pass(s, task.turn)
        arrive(s.x_empty[i])
        wait(s.y_empty[i], phase ^ 1)
        store(s.y[i], x)
        fence_async(s.y[i])
        arrive(s.y_full[i])

    @staticmethod
    def storer(cfg, g, s, task):
        i, phase = task.turn & 1, (task.turn >> 1) & 1
        wait(s.y_full[i], phase)
        store_async(g.Y, (task.id, 0), s.y[i])
        store_async_read_wait(0)
        arrive(s.y_empty[i])

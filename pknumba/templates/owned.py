"""How a product is spread over ranks that each own some of its tiles and sum them: who has which, the memory that partial tiles come to,
and the loop of storers where nobody else gets the sums.

Tiles are numbered; rank r owns ``per`` tiles from number r * per on, as far as there are any. Each rank begins with the next one's, goes on
round, and ends with its own. What others send for a tile lies whole in the owner's ``slots``: tile i of those it owns, from rank s, is
block s * per + i of tile_m rows and tile_n columns.
"""

from ..primitives import i32, keep_epoch, mod, signal, signal_all, store_async_wait, wait_until
from ..tiles import Task
from .forms import Whole, cut_of, share, windows_of

__all__ = ["OwnedRows", "OwnedTiles"]


class OwnedTiles(Whole):
    """A rank has A (m, k) and gets all of C, in symmetric memory; it owns every tile whose number lies in its part."""

    #: start: number of the tile that this rank begins with. per: tiles that a rank owns. others: of this rank's tasks, those that come
    #: before its own tiles. sources: ranks that send. blocks: that compute.
    layout = dict.fromkeys("start per others sources blocks".split(), 1)

    @staticmethod
    def numbers(m, n, k, cfg, world, sms):
        """See ``layout``."""
        cut = cut_of(m, n, k, cfg)
        return owned(cut, -(-cut["tasks"] // world.size), world, sms)

    @staticmethod
    def signals(numbers, world):
        """One for each tile that a rank owns."""
        return numbers["per"]

    @staticmethod
    def room(cfg, numbers, world):
        """A slot for every tile that a rank owns, from every rank."""
        return world.symmetric((world.size * numbers["per"] * cfg.tile_m, cfg.tile_n), cfg.dtype)

    @staticmethod
    def matrices(memory, m, n, world):
        """``slots``."""
        return {"slots": windows_of(world, memory, [(r, (0, 0), memory.shape) for r in range(world.size)])}


class OwnedRows(OwnedTiles):
    """A rank has A (m, k) and gets its share of the rows of C; it owns the tiles of that share.

    ``grid``: of the largest share; ``rows`` and ``extra``: what shares are made of."""

    layout = {**OwnedTiles.layout, "rows": 1, "extra": 1}

    @staticmethod
    def gotten(m, world):
        """This rank's share."""
        return share(m, world.size, world.rank)[1]

    @staticmethod
    def numbers(m, n, k, cfg, world, sms):
        """See ``layout``."""
        rows, extra = divmod(m, world.size)
        cut = cut_of(-(-m // world.size), n, k, cfg)
        return {**owned({**cut, "tasks": cut["tasks"] * world.size}, cut["tasks"], world, sms), "rows": rows, "extra": extra}


def owned(cut, per, world, sms):
    """The numbers of a product cut into tiles of which a rank owns ``per``."""
    tasks, size, rank = cut["tasks"], world.size, world.rank
    mine = max(0, min(per, tasks - rank * per))
    return {**cut, "start": min((rank + 1) * per, tasks) % tasks, "per": per, "others": tasks - mine, "sources": size - 1,
            "blocks": min(tasks, sms)}


def keeping(role, steps):
    """As ``delivery.delivering``, for kernels that wait themselves for all that comes from peers: the call is over for a rank when its
    own storers have done everything."""
    def drive(cfg, g, s, part, place, places):
        if place == 0:
            signal_all(g.ready, g.rank)
        turn, step = i32(0), i32(0)
        for t in range(place, g.tasks, places):
            role(cfg, g, s, Task(i32(t), turn, part, mod(t, g.world_size), step))
            step = i32(step + steps(cfg, g, i32(t)))
            turn = i32(turn + 1)
        store_async_wait(0)
        signal(g.finished, g.rank, g.rank)
        if place == 0:
            wait_until(g.finished, g.rank, i32(g.epoch * g.blocks))
            keep_epoch(g.finished, g.epoch)
    return drive

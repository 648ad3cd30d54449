"""A launch in a few lines, for tests of single rules."""

from types import SimpleNamespace

from pknumba import interpreter as cpu
from pknumba.tiles import Role, Semaphore, Tile

TILE = Tile((8, 64), "float32")


def play(*workers, tiles=None, semaphores=None, resident=None, session=None, **options):
    """Run workers as one launch per rank that occurs; return the session.

    Args:
        workers: (role name, fn) or (role name, fn, dict of rank, block, part, workers, together). fn(s) gets the block's
            tiles and semaphores by name.
        tiles: {name: declaration, or (offset, declaration)}.
        semaphores: {name: (by, arrivals) or (by, arrivals, n)}.
    """
    session = session or cpu.Session(**options)
    ranks = sorted({w[2].get("rank", 0) if len(w) > 2 else 0 for w in workers})
    for rank in ranks:
        session.spawn_host(rank, lambda rank=rank: launch(session, rank, workers, tiles or {}, semaphores or {}, resident))
    session.run()
    return session


def launch(session, rank, workers, tiles, semaphores, resident=None):
    mine = [(w[0], w[1], dict(w[2]) if len(w) > 2 else {}) for w in workers]
    mine = [w for w in mine if w[2].get("rank", 0) == rank]
    work, blocks = session.launch(rank, "test", 1 + max(w[2].get("block", 0) for w in mine), resident), {}
    for name, fn, where in mine:
        block = work.block(where.get("block", 0))
        s = blocks.get(block.number)
        if s is None:
            s = blocks[block.number] = declare(block, tiles, semaphores)
        role = Role(name, "thread", where.get("workers", 1), where.get("together", True))
        work.role(block, role, where.get("part", 0), lambda fn=fn, s=s: fn(s))
    work.wait()


def declare(block, tiles, semaphores):
    s, at = SimpleNamespace(), 1024
    for name, decl in tiles.items():
        offset, decl = decl if isinstance(decl, tuple) else (at, decl)
        setattr(s, name, block.tile(name, offset, decl))
        at = max(at, offset + decl.nbytes)
    for name, (by, arrivals, *n) in semaphores.items():
        setattr(s, name, block.semaphore(name, Semaphore(n[0] if n else 1, by=by), arrivals))
    return s

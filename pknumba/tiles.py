"""What a kernel declares: shared tiles, semaphores, counters, its configuration, and the task a role is given.

Nothing here knows an executor. The template turns declarations into shared-memory offsets, arrival counts and register
budgets; the interpreter turns them into NumPy arrays; the lowering turns them into types.
"""

from collections import namedtuple
from dataclasses import dataclass, fields
from functools import lru_cache
from math import prod

from .errors import ConfigError

__all__ = ["ITEMSIZE", "DTYPES", "Tile", "Semaphore", "Config", "Role", "Task", "TileTask", "GroupTask", "shared", "layout", "SHARED_LIMIT"]

#: Bytes of an element of each dtype, by its NumPy (or ml_dtypes) name.
ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4, "int32": 4, "uint32": 4}
#: Dtypes that matrix multiplication takes.
DTYPES = ("bfloat16", "float16")
#: Bytes of shared memory a block may have on sm_90 (227 KiB).
SHARED_LIMIT = 232448
#: Bytes at the start of a block's shared memory that hold its semaphores and the launch's context.
HEADER = 1024


@dataclass(frozen=True)
class Tile:
    """Shared memory: leading dimensions count tiles, the last two are rows and columns.

    A tile of more columns than one swizzle span (``swizzle`` bytes) is stored as panels of ``panel`` columns, one after
    the other, each ``rows`` x ``swizzle`` bytes: the layout that wgmma and the bulk copy engine share.

    Args:
        shape: (..., rows, columns).
        dtype: name of the element type.
        swizzle: bytes of the swizzle span: 32, 64 or 128.
        over: names of earlier tiles, comma separated, whose memory this tile reuses. The kernel must have drained them.
    """

    shape: tuple
    dtype: str = "bfloat16"
    swizzle: int = 128
    over: str = ""

    @property
    def itemsize(self):
        return ITEMSIZE[self.dtype]

    @property
    def nbytes(self):
        return prod(self.shape) * self.itemsize

    @property
    def panel(self):
        """Columns of one swizzle span."""
        return self.swizzle // self.itemsize

    @property
    def panels(self):
        return -(-self.shape[-1] // self.panel)

    def check(self, name):
        """Raise ConfigError unless the bulk copy engine and wgmma can use the tile."""
        if self.swizzle not in (32, 64, 128):
            raise ConfigError(f"tile {name}: swizzle = {self.swizzle}. It must be 32, 64 or 128 bytes.")
        if self.shape[-1] % self.panel:
            raise ConfigError(f"tile {name}: {self.shape[-1]} columns of {self.dtype} are not a multiple of the {self.panel} of a "
                              f"{self.swizzle}-byte swizzle. Use a smaller swizzle or wider tile.")
        if self.shape[-2] % 8:
            raise ConfigError(f"tile {name}: {self.shape[-2]} rows. A swizzled tile has a multiple of 8 rows.")


@dataclass(frozen=True)
class Semaphore:
    """``n`` semaphores (mbarriers) on which every worker of role ``by`` arrives once a phase; the template derives how many.

    ``of`` says whose workers: those of the "block", or of every block of its "cluster", each of which then arrives at all of these
    blocks at once. Who waits for the latter waits for their last phase too before it ends (``LCS.emptied``): others may not arrive at a
    block that has left.
    """

    n: int
    by: str
    of: str = "block"

    def arrivals(self, role):
        """How many arrivals complete a phase, if ``role`` (Role) arrives."""
        return role.arrivals * (role.cluster if self.of == "cluster" else 1)


@dataclass(frozen=True)
class Config:
    """Base of a kernel's frozen configuration. Integers and strings; fields *and properties* are constants inside roles."""

    #: Blocks that run at once and reach each other's shared memory; a field in families that know clusters.
    cluster = 1

    def replace(self, **changes):
        """A copy with other fields. Raises ConfigError for a field that does not exist."""
        known = {f.name for f in fields(self)}
        for name in changes:
            if name not in known:
                raise ConfigError(f"{type(self).__name__}: no field {name!r}. Its fields are {', '.join(sorted(known))}.", field=name)
        return type(self)(**{**vars(self), **changes})

    def check(self):
        """Raise ConfigError unless a device of this kind can run the configuration. Here: unless fields have their types."""
        for f in fields(self):
            value = getattr(self, f.name)
            if type(value) is not f.type:
                raise ConfigError(f"{type(self).__name__}: {f.name} = {value!r} is a {type(value).__name__}. It must be {f.type.__name__}. "
                                  "Pass plain Python values.", config=self, field=f.name)


@dataclass(frozen=True)
class Role:
    """A role as the template runs it: ``scope`` is "thread", "warp" or "warpgroup", ``workers`` how many play it in a block.

    ``together`` says whether the workers share each task (each plays one ``task.part``) or take tasks in turns. ``cluster``: blocks
    of a cluster. ``beside``: of communicators, whether they play in blocks that compute, instead of in blocks of their own.
    """

    name: str
    scope: str = "thread"
    workers: int = 1
    together: bool = True
    cluster: int = 1
    beside: bool = False

    @property
    def arrivals(self):
        """How many of its workers in a block arrive on a semaphore in one phase."""
        return self.workers if self.together else 1


#: What a role is given to do. ``id``: number of the task; ``turn``: how many tasks this block had before; ``part``: which
#: worker of a role that works together; ``owner``: rank that owns the task; ``step``: ring steps this block took before.
Task = namedtuple("Task", "id turn part owner step")

#: A task of a kernel that says where its tasks lie (``locate``). ``row``, ``col``: of the output tile, in tiles; ``first``: row
#: of A that tile row 0 starts at; ``peer``: rank whose memory the tile is stored to, None for this rank's own.
TileTask = namedtuple("TileTask", (*Task._fields, "row", "col", "first", "peer"))

#: A tile's task of a kernel whose rows are in groups. ``group``: which; ``first``, ``end``: the tile's rows, ``row``: 0.
GroupTask = namedtuple("GroupTask", (*TileTask._fields, "group", "end"))


@lru_cache(maxsize=256)
def record_type(name, *fields):
    """A type of named tuple: the same one every time."""
    return namedtuple(name, fields)


def shared(**declarations):
    """The named tiles and semaphores of a block, in order."""
    return record_type("Shared", *declarations)(**declarations)


def layout(declarations):
    """Place a block's shared memory.

    Returns:
        ({name: (byte offset, declaration)}, bytes in all). Semaphores come first, then tiles on 1024-byte boundaries, which
        a 128-byte swizzle needs.
    """
    places, at = {}, 0
    for name, d in zip(declarations._fields, declarations):
        if isinstance(d, Semaphore):
            places[name] = at, d
            at += 8 * d.n
    if at > HEADER - 64:
        raise ConfigError(f"shared: {at // 8} semaphores. A block has room for {(HEADER - 64) // 8}. Use fewer stages.")
    at = HEADER
    for name, d in zip(declarations._fields, declarations):
        if isinstance(d, Tile):
            d.check(name)
            if d.over:
                covered = [places[o.strip()] for o in d.over.split(",")]
                start, end = covered[0][0], covered[-1][0] + covered[-1][1].nbytes
                if d.nbytes > end - start:
                    raise ConfigError(f"tile {name}: {d.nbytes} bytes do not fit over {d.over}, which have {end - start}.")
                places[name] = start, d
            else:
                places[name] = at, d
                at += -(-d.nbytes // 1024) * 1024
    return places, at

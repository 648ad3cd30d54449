"""Every checked access to memory, and the two synchronous ones: read and write through the generic proxy."""

from math import prod

import numpy as np

from ..errors import ContractError, ProtocolError
from .report import error, origin, site, where
from .shadow import check, record, unfenced
from .task import current
from .tiles import SharedTile


def access(task, region, kind, name, at, place, generic):
    """Check one access against all others, and remember it.

    Args:
        region: SharedTile or Window.
        kind: "read", "write" or the operation of an atomic reduction.
        name: what the primitive is called.
        at: (component, epoch) in which it happens.
        place: site().
        generic: whether it goes through the generic proxy (else the async one).

    Raises:
        RaceError, and ProtocolError for memory nothing has written or whose writer has not called fence_async.
    """
    session = task.session
    cell = region.cell(session)
    if cell is None:
        return
    session.accesses += 1
    if session.events is not None:
        verb = kind if kind in ("read", "write") else f"{kind} into"
        session.note(task, "access", f"{verb} {region.label}" if generic else f"{name}: to {verb} {region.label}", place=place)
    check(cell, task, kind, name, region, place)
    if region.__class__ is SharedTile:
        if kind == "write":
            region.arena.initialise(cell)
        else:
            if not region.arena.initialised(cell):
                raise ProtocolError(f"{task.name} at {where(place)}: {name} reads {region.label}, which nothing has written. "
                                    "Shared memory starts undefined. Wait for the semaphore of the load first.",
                                    **origin(task, place))
            if not generic:
                _check_fence(task, region, cell, name, place)
    record(region.shadow, cell, kind, (*at, task.name, name, place, generic, kind))


def _check_fence(task, region, cell, name, place):
    write = unfenced(cell, task.clock)
    if write is not None:
        raise ProtocolError(
            f"{task.name} at {where(place)}: {name} reads {region.label} through the async proxy, but {write[2]} wrote it at "
            f"{where(write[4])} and has not called fence_async since. Ordinary writes reach the copy engine and the tensor cores "
            "only through a proxy fence. Call fence_async(tile) after the write, before arriving.",
            **origin(task, place), writer=write[2])


def fence_async(tile):
    """Make the generic writes of the current role to `tile` visible to the async proxy. PTX: fence.proxy.async."""
    task = current()
    if task.session.races:
        cell = tile.cell(task.session)
        for c in (cell, *[other for other, _ in cell.near]):
            if c.write is not None and c.write[5] and c.write[0] == task.component:
                c.fence = task.epoch
    task.met = tile.name
    if task.session.events is not None:
        task.session.note(task, "fence", f"fence_async {tile.name}")


def read(region):
    """A copy of the region's values (outside the array: zero), through the generic proxy."""
    task = current()
    task.met = None
    if task.session.races:
        access(task, region, "read", "read", (task.component, task.epoch), site(), generic=True)
    time = task.session.time
    values = region.read() if time is None or time.moves(region) else np.broadcast_to(np.zeros((), region.dtype), region.shape)
    if time is None:
        task.pause()
    else:
        _spend(task, region, "read")
    return values


def write(region, values):
    """Write the region, converted to its dtype, through the generic proxy."""
    task = current()
    task.met = None
    if np.size(values) not in (prod(region.shape), 1):
        raise error(ContractError, task, f"write: {np.shape(values)} values into {region.name} of shape {region.shape}.")
    if task.session.races:
        access(task, region, "write", "write", (task.component, task.epoch), site(), generic=True)
    time = task.session.time
    if time is not None and not time.moves(region):
        return _spend(task, region, "write")
    if np.size(values) == 1 and prod(region.shape) != 1:
        values = np.broadcast_to(np.reshape(values, ()), region.shape)
    with np.errstate(over="ignore"):        # what is too large for the dtype becomes infinite, as on the device
        values = np.asarray(values).astype(region.dtype, copy=False)
    region.put(values)
    return task.pause() if time is None else _spend(task, region, "write")


def _spend(task, region, verb):
    """The access takes its virtual time."""
    session = task.session
    begun = session.now
    session.time.access(task, region, verb == "write")
    task.pause()
    if begun is not None:
        session.note(task, "access", f"{verb}s {region.label}", begun)

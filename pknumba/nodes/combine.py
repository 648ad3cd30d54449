"""The sum (or minimum, or maximum) of what came from several nodes, where it lies: the kernel of a device, no communication."""

import struct
from collections import namedtuple

from ..config import CommConfig
from ..primitives import i32, reduce_box
from ..templates import Comm
from ..templates.call import describe_hang, device_table
from ..templates.geometry import Box, Form, View, contiguous
from ..templates.transfers import DeviceComm, InterpretedComm, Workspace
from ..tiles import Task

__all__ = ["Combine", "combine"]


class Combine(Comm):
    """What collectives do with peers' arrays, done with several arrays of this rank."""

    operator, tensors, symmetric, counters = "combine", ("S", "Y"), ("S",), ()
    numbers = {"box": 5, "pieces": 1}

    @staticmethod
    def communicator(cfg, g, s, task):
        reduce_box(g.Y, g.S, task.id, g.box, cfg.unroll, cfg.op)

    @classmethod
    def driver(kernel, role):
        """Nobody is waited for."""
        return lambda communicate, _: alone(communicate)


def alone(communicate):
    """All pieces, one after the other."""
    def drive(cfg, g, s, part, place, places):
        for i in range(place, g.pieces, places):
            communicate(cfg, g, s, Task(i32(i), i32(0), i32(0), g.rank, i32(0)))
    return drive


class _Slots:
    """A world as kernels know it whose "ranks" are arrays of this one."""

    def __init__(self, world, size):
        self.world, self.rank, self.size = world.node, 0, size

    def __getattr__(self, name):
        return getattr(self.world, name)

    @property
    def session(self):
        return _Session(self.world.session, self.world.rank)


class _Session:
    def __init__(self, session, rank):
        self._session, self._rank = session, rank

    def launch(self, _, name, grid, resident=None):
        return self._session.launch(self._rank, name, grid, resident)

    def rank_of(self, _):
        return self._session.rank_of(self._rank)

    def __getattr__(self, name):
        return getattr(self._session, name)


_Prepared = namedtuple("_Prepared", "launch keep")


def combine(memory, target, terms, op):
    """target = terms[0] + terms[1] + ... in float32 in that order, rounded once; integers wrap. The target may be one of the terms.

    Args:
        memory: memory.Memory. terms: arrays of one length.
    """
    world = memory.world
    key = "combine", target.size, op, memory.dtype, memory.stream, tuple(_address(t) for t in terms), _address(target)
    prepared = world.cache.get(key) if memory.gpu else None
    if prepared is None:
        prepared = _prepare(memory, target, terms, op)
        if memory.gpu:
            kept = world.cache.setdefault("combined", [])
            kept.append(key)
            if len(kept) > 1024:                # addresses of users' arrays come and go
                world.cache.pop(kept.pop(0), None)
            world.cache[key] = prepared
    prepared.launch.fire(memory.stream, target)


def _prepare(memory, target, terms, op):
    world, slots, n = memory.world, _Slots(memory.world, len(terms)), target.size
    strides = contiguous((n,), memory.size)
    box = Box("combine", Form((n,), (n,)), memory.dtype, strides, strides)
    cfg = CommConfig(dtype=memory.dtype, op=op, unroll=4 if n * memory.size >= 32 * 4 * 16 * 16 * world.num_sms else 1)
    pieces = -(-box.numbers[-1] // (32 * cfg.unroll))
    cfg = cfg.replace(blocks=max(1, min(-(-pieces // cfg.warps), world.num_sms)))
    numbers = dict(box=box.numbers, pieces=pieces)
    if not memory.gpu:
        views = dict(S=View(arrays=list(terms), strides=box.x[0]), Y=View(arrays=[target] + [None] * (len(terms) - 1), strides=box.y[0]))
        return _Prepared(InterpretedComm(Combine, slots, cfg, views, numbers, Workspace({}, None, {})), None)
    addresses = [term.pointer for term in terms]
    low = 0
    for address in addresses:
        low |= address & 15
    views = dict(S=View(addresses[0], None, device_table(world.node, struct.pack(f"<{len(addresses)}Q", *addresses)), box.x[0], low),
                 Y=View(target.pointer, strides=box.y[0]))      # the step, of slots that there are none of, carries the least alignment
    context = world.node.cache.get("combine context")
    if context is None:
        context = world.node.cache["combine context"] = world.node.context(names=lambda record: describe_hang(Combine, cfg, record))
    return _Prepared(DeviceComm(Combine, slots, cfg, views, numbers, Workspace({}, context, {})), terms)


def _address(array):
    return array.pointer if hasattr(array, "pointer") else array.ctypes.data

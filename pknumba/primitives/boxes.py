"""Collectives of boxes: a warp copies, or combines over ranks, one piece of a box that lies anyhow in memory.

A box is n0 x n1 x n2 rows of neighbouring elements: what one rank has for another. ``g.box`` is (n1, n2, units of a row,
elements of a row's last unit, units in all), a unit being 16 bytes; a tensor says how far apart its rows lie, and how far its
slots (the boxes for, or from, each rank). Piece ``number`` is units 32 * unroll * number and on: the same elements in every
tensor, whatever its layout; what lies beyond the box is nothing. Peers must have signalled that what is read is written and
that what is written is read (``announce``, ``await_all``).
"""

from functools import reduce as fold

import numpy as np

from ..interpreter import read, write
from ..lowering import Int, constant, need, primitive
from ..tiles import ITEMSIZE
from .units import DTYPES, UNIT, Units

#: op -> NumPy function.
OPS = {"sum": np.add, "min": np.minimum, "max": np.maximum}


def _runs(box, number, unroll, dtype):
    """Neighbouring elements of a piece: (index of the row, byte in the row, elements)."""
    n1, n2, per_row, last, total = map(int, box)
    width = UNIT // ITEMSIZE[str(dtype)]
    at, end = number * 32 * unroll, min((number + 1) * 32 * unroll, total)
    while at < end:
        row, column = divmod(at, per_row)
        units = min(end - at, per_row - column)
        yield ((row // n2 // n1, row // n2 % n1, row % n2), UNIT * column,
               units * width - (width - last if column + units == per_row else 0))
        at += units


def _span(tensor, slot, run, peer=None):
    index, at, count = run
    return tensor.span(slot * tensor.step + sum(i * s for i, s in zip(index, tensor.strides)) + at, count, peer)


def combined(op, arrays):
    """Arrays of one dtype combined in their order: in float32 and rounded once; integers wrap."""
    first = arrays[0]
    if first.dtype.kind == "i":
        return fold(OPS[op], arrays)
    return fold(OPS[op], [x.astype(np.float32) for x in arrays]).astype(first.dtype)


def _check(name, op, *tensors, multicast=False):
    dtypes = {str(t.dtype) for t in tensors}
    need(len(dtypes) == 1 and dtypes <= set(DTYPES), f"{name}: of {' and '.join(sorted(dtypes))}. Tensors have one dtype, one of "
         f"{', '.join(DTYPES)}.")
    need(op in OPS, f"{name}: op = {op!r}. It must be one of {', '.join(OPS)}.")
    need(not multicast or dtypes <= {"bfloat16", "float16"} or op == "sum" and dtypes == {"float32"}, f"{name}: {op} of {dtypes.pop()} by "
         "multicast. The switch has sums of floats, and min and max of 16-bit floats. Use multicast=False.")


@primitive(scope="warp")
def copy_box(to, source, number, box, unroll, to_slot=0, slot=0, peer=None, to_peer=None, everywhere=False):
    """A piece of a box from slot ``slot`` of rank ``peer``'s ``source`` to slot ``to_slot`` of rank ``to_peer``'s ``to``.

    Args:
        to, source: tensors of one dtype: bfloat16, float16, float32 or int32. number: of the piece. box: ``g.box``.
        unroll: constant, units that a lane moves at once. peer, to_peer: None for this rank. everywhere: constant; write it to every
            rank's ``to``.

    Raises ContractError for tensors of two dtypes.

    PTX: ld.relaxed.sys.global.v4.b32, st.relaxed.sys.global.v4.b32; element by element (b16 or b32) where a row ends within a unit or units
    are not aligned.
    """
    _check("copy_box", "sum", to, source)
    for run in _runs(box, number, unroll, to.dtype):
        values = read(_span(source, slot, run, peer))
        for step in range(to.world_size if everywhere else 1):
            write(_span(to, to_slot, run, (to.rank + step) % to.world_size if everywhere else to_peer), values)


@copy_box.lowering
def _(to, source, number, box, unroll, to_slot, slot, peer, to_peer, everywhere):
    _check("copy_box", "sum", to, source)
    u, everywhere = Units("copy_box", to.dtype, constant(unroll, "copy_box: unroll")), constant(everywhere, "copy_box: everywhere")

    def emit(p, to_at, source_at, number, box, _, to_slot, slot, peer, to_peer, __):
        here, aligned = u.base(p, source_at, slot, peer), u.all_aligned(p, (source_at, to_at))
        (offsets, targets), left = u.places(p, box, number, (source_at, to_at))
        whole = [u.whole(p, n, aligned) for n in left]
        words = u.load(p, here, offsets, whole)
        for there in _targets(p, u, to_at, to_slot, everywhere, to_peer):
            u.store(p, there, targets, whole, words)
        for x in u.others(p, box, number, aligned):
            start, target = (u.offset(p, at, x) for at in (source_at, to_at))
            for i in p.loop(x.left):
                far = p.wide(p.scale(i, u.itemsize))
                bits = u.load_element(p, p.b.add(p.b.add(here, start), far))
                for there in _targets(p, u, to_at, to_slot, everywhere, to_peer):
                    u.store_element(p, p.b.add(p.b.add(there, target), far), bits)
    return emit


@primitive(scope="warp")
def copy_boxes(to, source, number, box, unroll, at_once=4):
    """A piece of every rank's box for this rank: from that slot of its ``source`` to the slot of ``to`` that is the rank's.

    What ``copy_box`` does in turn for every rank as ``peer`` and ``to_slot``, with this rank as ``slot``. A warp begins with its own rank,
    so that links share the load, and looks for its place in the box once: where rows are short, that costs more than the moves.

    Args:
        to, source, number, box, unroll: as in ``copy_box``; source is symmetric. at_once: constant, units that a lane has on the way: of
            ``at_once // unroll`` ranks, of one at least.

    Raises ContractError for tensors of two dtypes.

    PTX: as of ``copy_box``.
    """
    _check("copy_boxes", "sum", to, source)
    for step in range(to.world_size):
        peer = (to.rank + step) % to.world_size
        for run in _runs(box, number, unroll, to.dtype):
            write(_span(to, peer, run), read(_span(source, to.rank, run, peer)))


@copy_boxes.lowering
def _(to, source, number, box, unroll, at_once):
    _check("copy_boxes", "sum", to, source)
    u = Units("copy_boxes", to.dtype, constant(unroll, "copy_boxes: unroll"))
    many = max(1, constant(at_once, "copy_boxes: at_once") // u.unroll)

    def emit(p, to_at, source_at, number, box, _, __):
        b, c, aligned = p.b, p.const, u.all_aligned(p, (source_at, to_at))
        world, rank = p.tensor(to_at, "world", "rank")
        (offsets, targets), left = u.places(p, box, number, (source_at, to_at))
        whole = [u.whole(p, n, aligned) for n in left]

        def ends(step):
            """Addresses of a rank's box for this one, and of where it goes."""
            peer = b.urem(b.add(rank, step), world)
            return u.base(p, source_at, rank, peer), u.base(p, to_at, peer)

        for turn in p.loop(b.udiv(b.add(world, c(many - 1)), c(many))):
            steps = [b.add(p.scale(turn, many), c(k)) for k in range(many)]
            there = [[b.and_(b.icmp_unsigned("<", step, world), x) for x in whole] if many > 1 else whole for step in steps]
            places = [ends(step) for step in steps]
            words = [u.load(p, here, offsets, some) for (here, _), some in zip(places, there)]
            for (_, target), some, found in zip(places, there, words):
                u.store(p, target, targets, some, found)
        for x in u.others(p, box, number, aligned):
            start, target = (u.offset(p, at, x) for at in (source_at, to_at))
            for step in p.loop(world):
                here, there = ends(step)
                for i in p.loop(x.left):
                    far = p.wide(p.scale(i, u.itemsize))
                    bits = u.load_element(p, b.add(b.add(here, start), far))
                    u.store_element(p, b.add(b.add(there, target), far), bits)
    return emit


@primitive(scope="warp")
def reduce_box(to, source, number, box, unroll, op="sum", to_slot=0, slot=0, everywhere=False, multicast=False, more=None, here=False,
               at_once=4):
    """A piece of a box: that of slot ``slot`` of every rank's ``source``, combined, to slot ``to_slot`` of ``to``.

    Floating-point numbers are combined in float32 in rank order, whoever does it, and rounded once; integers wrap.

    Args:
        to, source, number, box, unroll: as in ``copy_box``. op: constant, "sum", "min" or "max".
        everywhere: constant; write it to every rank's ``to``, not only to this rank's.
        multicast: constant; the switch adds and distributes whole units, in an order of its own, through the tensors' multicast
            addresses. Not for int32, and of float32 sums only.
        more: tensor of this rank whose slot ``slot`` is combined last, before rounding; None: there is none.
        at_once: constant, units that a lane has on the way: of ``at_once // unroll`` ranks, of one at least.
        here: constant; combine slots 0, 1, ... of this rank's ``source``, as many as ranks, in place of one slot of every rank's.

    Raises ContractError for another op or tensors of two dtypes.

    PTX: ld.relaxed.sys.global.v4.b32, add or min or max, st.relaxed.sys.global.v4.b32; element by element as in ``copy_box``.
    With multicast, multimem.ld_reduce.relaxed.sys.global and multimem.st.relaxed.sys.global in 16-byte vectors.
    """
    _check("reduce_box", op, to, source, multicast=multicast)
    for run in _runs(box, number, unroll, to.dtype):
        parts = [read(_span(source, *((peer, run) if here else (slot, run, peer)))) for peer in range(source.world_size)]
        total = combined(op, parts + ([] if more is None else [read(_span(more, slot, run))]))
        for step in range(to.world_size if everywhere else 1):
            write(_span(to, to_slot, run, (to.rank + step) % to.world_size), total)


@reduce_box.lowering
def _(to, source, number, box, unroll, op, to_slot, slot, everywhere, multicast, more, here, at_once):
    op, everywhere, here = (constant(x, f"reduce_box: {n}") for x, n in ((op, "op"), (everywhere, "everywhere"), (here, "here")))
    multicast, given = constant(multicast, "reduce_box: multicast"), hasattr(more, "ident")
    _check("reduce_box", op, to, source, *([more] if given else []), multicast=multicast)
    u = Units("reduce_box", to.dtype, constant(unroll, "reduce_box: unroll"))

    many = max(1, constant(at_once, "reduce_box: at_once") // u.unroll)

    def emit(p, to_at, source_at, number, box, _, __, to_slot, slot, ___, ____, more_at, _____, ______):
        tensors = [source_at, to_at] + ([more_at] if given else [])
        aligned = u.all_aligned(p, tensors)
        (offsets, targets, *rest), left = u.places(p, box, number, tensors)
        whole = [u.whole(p, n, aligned) for n in left]
        if multicast:
            words = u.load(p, u.multicast(p, source_at, slot), offsets, whole, u.switch("ld_reduce", op))
            values = u.values(p, words)
        else:
            values = _total(p, u, op, source_at, None if here else slot,
                            lambda base, there: u.load(p, base, offsets, [p.b.and_(there, x) for x in whole]), many)
        if given:
            own = u.values(p, u.load(p, u.base(p, more_at, slot), rest[0], whole))
            values = [u.combine(p, op, a, b) for a, b in zip(values, own)]
        if given or not multicast:
            words = u.words(p, values)
        if multicast and everywhere:
            u.store(p, u.multicast(p, to_at, to_slot), targets, whole, words, u.switch("st"))
        else:
            for base in _targets(p, u, to_at, to_slot, everywhere):
                u.store(p, base, targets, whole, words)
        for x in u.others(p, box, number, aligned):
            _reduce_elements(p, u, op, x, tensors, (to_slot, slot, None if here else slot), everywhere)
    return emit


def _reduce_elements(p, u, op, unit, tensors, slots, everywhere):
    """``reduce_box`` of a unit that is not whole, element by element. tensors: addresses of source, target, and the one to add; slots: of
    the target, of that one, of the source."""
    source_at, to_at, *more = tensors
    places = [u.offset(p, at, unit) for at in tensors]
    for i in p.loop(unit.left):
        far = p.wide(p.scale(i, u.itemsize))
        start, target, *own = (p.b.add(place, far) for place in places)
        total, *_ = _total(p, u, op, source_at, slots[2], lambda base, _: [u.load_element(p, p.b.add(base, start))], 1)
        for at, place in zip(more, own):
            total = u.combine(p, op, total, u.value(p, u.load_element(p, p.b.add(u.base(p, at, slots[1]), place))))
        for base in _targets(p, u, to_at, slots[0], everywhere):
            u.store_element(p, p.b.add(base, target), u.bits(p, total))


def _total(p, u, op, source_at, slot, load, many):
    """The numbers of the words load(address of a rank's slot, whether there is such a rank), combined over the ranks in their order. Of
    ``many`` ranks they are loaded before the first is used. slot: None for this rank's slots, one from each."""
    world, = p.tensor(source_at, "world")

    def group(first):
        ranks = [p.b.add(first, p.const(k)) for k in range(many)]
        there = [p.b.icmp_unsigned("<", r, world) for r in ranks]
        places = [p.b.select(here, r, p.const(0)) for here, r in zip(there, ranks)]
        bases = [u.base(p, source_at, r) if slot is None else u.base(p, source_at, slot, r) for r in places]
        return list(zip(there, [load(base, here) for here, base in zip(there, bases)]))

    def add(sums, found):
        for here, words in found:
            sums = [p.b.select(here, u.combine(p, op, a, b), a) for a, b in zip(sums, u.values(p, words))]
        return sums

    (_, words), *found = group(p.const(0))
    values = add(u.values(p, words), found)
    total = u.variable(p, len(values))
    p.b.store(p.pack(values), total)
    for turn in p.loop(p.b.udiv(p.b.sub(world, p.const(1)), p.const(many))):
        found = group(p.scale(p.b.add(turn, p.const(1)), many))
        p.b.store(p.pack(add(p.elements(p.b.load(total)), found)), total)
    return p.elements(p.b.load(total))


def _targets(p, u, to_at, slot, everywhere, peer=None):
    """Addresses of the slot: one rank's (None: this one's), or every rank's, each beginning with its own so that links share the load."""
    if not everywhere:
        yield u.base(p, to_at, slot, peer)
        return
    world, rank = p.tensor(to_at, "world", "rank")
    for r in p.loop(world):
        yield u.base(p, to_at, slot, p.b.urem(p.b.add(r, rank), world))


@primitive()
def entry(table, number):
    """An integer of a table that the host has made: it never changes while the kernel runs.

    Args:
        table: tensor ``g.name`` of 32-bit integers of this rank; number: which.

    PTX: ld.global.b32.
    """
    return int(table.arrays[table.rank][int(number)])


@entry.lowering
def _(table, number):
    def emit(p, table_at, number):
        start, = p.tensor(table_at, "pointer")
        return p.field(p.i32, p.b.add(start, p.wide(p.b.shl(number, p.const(2)))), 0)
    return Int, emit

"""Rules of lint about what happens between ranks: counters, and blocks that wait for each other."""

import ast

from .rules import rule
from .subject import attribute, words


@rule
def counter_without_epoch(subject):
    """A counter is compared with a number that is the same in every call."""
    same = {"world_size", "range", "len", "max", "min", "id", "part", "owner", "rank", "g", "task", "cfg", "i32", "div", "mod"}
    for role, calls in subject.roles.items():
        for call in calls:
            if call.name == "wait_until" and len(call.node.args) >= 3 and attribute(call.node.args[0], "g"):
                used = words(call.node.args[2], call.names)
                if used <= same:
                    yield role, call, ("compares with the same number in every call. Counters only grow, so an earlier call's signals are "
                                       "enough. Multiply by g.epoch.")


@rule
def equality_on_counter(subject):
    """A counter is read and compared, or set, outside of wait_until and signal."""
    for role, calls in subject.roles.items():
        for call in calls:
            if isinstance(call.node.func, ast.Attribute) and call.node.func.attr in ("value", "reset", "fill") and \
                    attribute(call.node.func.value, "g"):
                yield role, call, ("reads or sets a counter itself. A test for equality misses a signal that comes early, a reset "
                                   "loses it. Use wait_until, which tests >= against an epoch.")


_WAITS = ("wait_until", "await_all")


def _counters(subject, names):
    """{counter: (role, call)} of the calls of these primitives."""
    return {attribute(c.node.args[0], "g"): (role, c) for role, calls in subject.roles.items() for c in calls
            if c.name in names and c.node.args and attribute(c.node.args[0], "g")}


@rule
def relaxed_wait(subject):
    """A counter that others signal is read by a load that orders nothing."""
    signalled = _counters(subject, ("signal", "signal_all", "announce"))
    for name, (role, call) in _counters(subject, ("times",)).items():
        if name in signalled:
            yield role, call, (f"reads g.{name}, which is signalled, and orders nothing: what was written before the signal need not be "
                               "visible. A wait acquires. Use wait_until, or a counter that only this block adds to.")


@rule
def gpu_scope_atomic(subject):
    """A symmetric counter that somebody waits for is added to at the scope of one device."""
    waited = _counters(subject, _WAITS)
    for name, (role, call) in _counters(subject, ("tick",)).items():
        if name in waited or name in subject.driven:
            yield role, call, (f"adds to g.{name} at the scope of one device and releases nothing, but a role waits for it. What ranks "
                               "wait for is added to at system scope. Use signal or announce.")


@rule
def spins_in_python(subject):
    """A loop that waits for memory without a primitive."""
    for role, calls in subject.roles.items():
        for call in calls:
            test = getattr(call.loop, "test", None)
            if test is not None and "g" in words(test) and call.name not in ("wait", "wait_until"):
                yield role, call, ("stands in a while loop that tests global memory. Such a loop has no limit and no memory order. "
                                   "Wait with wait_until.")


@rule
def counter_without_signal(subject):
    """A role waits for a counter that nobody signals."""
    if subject.opaque("g"):
        return
    signalled = {attribute(a, "g") for calls in subject.roles.values() for c in calls if c.name not in ("wait_until", "await_all")
                 for a in [*c.node.args, c.node.func.value if isinstance(c.node.func, ast.Attribute) else c.node.func]}
    for role, calls in subject.roles.items():
        for call in calls:
            name = attribute(call.node.args[0], "g") if call.name == "wait_until" and call.node.args else None
            if name and name not in signalled and name in (subject.counters or (name,)) and name not in subject.driven:
                yield role, call, f"nobody signals g.{name}. A counter grows by signals. Let a role signal it."


@rule
def one_hand_over(subject):
    """Ranks share memory and have one counter: what says "ready" cannot say "consumed", unless calls alternate between two halves of it."""
    halves = any(call.name == "mod" and attribute(call.node.args[0], "g") == "epoch" for calls in subject.roles.values() for call in calls
                 if call.node.args)
    if subject.symmetric and subject.counters is not None and len(subject.counters) == 1 and not halves:
        for role, calls in subject.roles.items():
            for call in calls:
                if call.name == "wait_until":
                    yield role, call, ("is the only hand-over. A peer must also say that it has consumed what it was sent before it is "
                                       "overwritten. Give the kernel a second counter, or a template that ends the call.")
                    return


@rule
def grid_not_resident(subject):
    """More spinning blocks than any device has SMs."""
    blocks = getattr(subject.cfg, "blocks", 0) or getattr(subject.cfg, "comm_sms", 0)
    if isinstance(blocks, int) and blocks > 132:
        for role, calls in subject.roles.items():
            for call in calls:
                if call.name == "wait_until":
                    yield role, call, (f"waits, and {blocks} blocks are launched. An H100 has 132 SMs, and blocks that wait for each other "
                                       "must be resident together. Use fewer blocks.")
                    return

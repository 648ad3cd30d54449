"""Texts of what went wrong: source sites, races, deadlocks, and the line that reproduces them."""

import os
import sys

from .waits import WaitGraph

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(_HERE))
#: Folders whose frames are never the kernel's own: lowering wraps each primitive.
_INSIDE = tuple(os.path.join(_PACKAGE, folder) + os.sep for folder in ("interpreter", "primitives", "lowering", "runtime"))
_known = {}


def _inside(filename):
    known = _known.get(filename)
    if known is None:
        known = _known[filename] = filename.startswith(_INSIDE) or os.path.abspath(filename).startswith(_INSIDE)
    return known


def site(frame=None):
    """(code, line) of the first frame outside the interpreter and what a primitive is made of: the kernel's line. None if there "
      "is none."""
    frame = frame or sys._getframe(1)
    while frame is not None and _inside(frame.f_code.co_filename):
        frame = frame.f_back
    return frame and (frame.f_code, frame.f_lineno)


def where(place):
    """`place` as site() gave it, as "file:line (function)"."""
    if place is None:
        return "an unknown line"
    code, line = place
    return f"{os.path.basename(code.co_filename)}:{line} ({code.co_name})"


def origin(task, place):
    """The attributes that every error of a role carries."""
    data = dict(rank=task.rank, task=task.name)
    if task.block is not None:
        data.update(block=int(task.block), role=task.role.name, part=task.part)
    if place is not None:
        data.update(filename=place[0].co_filename, line=place[1])
    return data


def error(cls, task, message, **data):
    """An exception of `task` (None outside a kernel) at the kernel's present line; the message starts with both."""
    if task is None:
        return cls(message, **data)
    place = site()
    return cls(f"{task.name} at {where(place)}: {message}", **{**origin(task, place), **data})


def names(found, limit=8):
    """"a, b and 3 more", each name once; "nobody" if there is none."""
    found = list(dict.fromkeys(found))
    text = ", ".join(found[:limit]) or "nobody"
    return text + (f" and {len(found) - limit} more" if len(found) > limit else "")


def finish(failure, session):
    """Let the failure's text end with the line that reproduces it, once."""
    if getattr(failure, "_reproduce", None):
        return
    line = f"reproduce: {session.reproduce}"
    try:
        failure._reproduce = line
    except AttributeError:
        return
    if hasattr(failure, "data") and failure.args and isinstance(failure.args[0], str):
        failure.args = (f"{failure.args[0]}\n{line}",) + failure.args[1:]
    elif hasattr(failure, "add_note"):
        failure.add_note(line)


def _never(task):
    return False


def waiting(task):
    """What a parked task waits for, as a dict; ``awaits``: (name, state) of the tasks that could bring it about."""
    place, waiting = task.waiting_site or site(task.gr_frame), task.waiting
    awaits = [(t.name, "ended" if t.dead else "waits" if t.waiting is not None else "not started" if not t.started else "runs")
              for t in (waiting.awaits(task) if hasattr(waiting, "awaits") else ())]
    expected, seen = waiting.progress(task) if hasattr(waiting, "progress") else (None, None)
    return dict(origin(task, place), why=waiting.describe(task), site=where(place), awaits=awaits, expected=expected, seen=seen,
                since=task.since)


def _lines(rows):
    """One line for each wait; workers of a role that wait for the same thing share one."""
    groups = {}
    for row in rows:
        key = row["rank"], row.get("block"), row.get("role"), row["site"], row["why"]
        groups.setdefault(key, []).append(row)
    for (*_, place, why), same in groups.items():
        more = f" (and {len(same) - 1} more workers: {names((str(r['part']) for r in same[1:]), 16)})" if len(same) > 1 else ""
        yield f"  {same[0]['task']}{more} at {place} waits for {why}"


def deadlock(blocked, alive, queued):
    """(text, rows) of a deadlock.

    Args:
        blocked: parked tasks.
        alive: how many tasks have not ended.
        queued: (launch, blocks that have not started) of launches that wait for room.
    """
    order = sorted(blocked, key=lambda t: (t.rank, -1 if t.block is None else int(t.block), t.order))
    rows = [waiting(t) for t in order]
    lines = [f"deadlock: {len(rows)} of {alive} tasks wait and nothing is in flight."]
    for launch, blocks in queued:
        card, late = launch.session.card.sms, f"block{'s' if len(blocks) > 1 else ''} {names(map(str, blocks), 4)}"
        if card is not None and launch.fits:
            lines.append(f"  rank {launch.rank} launch {launch.name}: {launch.running} of its {launch.grid} blocks run, and {late} cannot "
                         f"start: the {card} SMs of the card are taken by all ranks' blocks, which wait. Start first what is waited for, "
                         "or launch no more blocks than there is surely room for.")
            continue
        lines.append(f"  rank {launch.rank} launch {launch.name}: the grid cannot be resident. {launch.resident} of its "
                     f"{launch.grid} blocks fit at once and {late} "
                     f"cannot start before another ends. Launch no more than {launch.resident} blocks.")
    begun = [getattr(task.waiting, "begun", _never)(task) for task in order]
    if len(rows) > 8 and 0 < sum(begun) < len(rows):
        lines += ["  Something has come, but not all (look here first):"]
        lines += _lines(r for r, b in zip(rows, begun) if b)
        lines += ["  The rest:"]
        lines += _lines(r for r, b in zip(rows, begun) if not b)
    else:
        lines += _lines(rows)
    if rows and not queued and not any(r.get("role") for r in rows):
        lines.append("  No kernel runs: another rank's program has ended without that call. The ranks of a world make its collective calls "
                     "together. Look for a call that only some ranks make.")
    graph = WaitGraph(rows)
    if graph.edges:
        lines += ["  Who should have come:", *("  " + line for line in graph.text().splitlines())]
    return "\n".join(lines), rows

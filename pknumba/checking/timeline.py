"""Timelines of a traced run: a few lines of text, a Chrome trace, an SVG."""

import json
import textwrap
from html import escape
from itertools import groupby

from ..interpreter.report import where

#: Colours by kind of event.
COLOURS = {"wait": "#c9ccd1", "arrive": "#e8a33d", "signal": "#d9534f", "access": "#5b8def", "fence": "#9b6dd6", "copy": "#7fb2e5",
           "mma": "#63a667"}


def stretches(events):
    """[(role, events)] of whoever went on, in order; what the copy engine does for a role is the role's."""
    ordered = sorted(events, key=lambda e: e.end)
    return [(lane, list(found)) for lane, found in groupby(ordered, key=_owner)]


def text(events, lanes=(), limit=16):
    """A short timeline of the end of a run.

    Args:
        events: of a session. lanes: tasks to show; all if empty. limit: lines.
    """
    shown = stretches([e for e in events if not lanes or _owner(e) in lanes])
    lines = []
    if len(shown) > limit:
        lines.append(f"  ... {len(shown) - limit} earlier stretches")
    for lane, found in shown[-limit:]:
        words = [_words(e) for e in found]
        told = "; ".join(words if len(words) <= 4 else [words[0], f"({len(words) - 3} more)", *words[-2:]])
        lines.append(f"  {found[0].end:5d}  {lane:<{max(len(x) for x, _ in shown)}}  {told}")
    return "\n".join(lines)


def order(schedule, limit=16):
    """Who went, for how many steps: for runs in which nobody did anything that a timeline shows."""
    more = f"... {len(schedule) - limit} earlier, " if len(schedule) > limit else ""
    return "  " + more + ", ".join(f"{label} x {steps}" for label, steps in schedule[-limit:])


def _words(event):
    if event.kind in ("copy", "mma"):
        return f"({event.lane.split(' of ')[0]} {event.text})"
    return f"waited: {event.text}" if event.kind == "wait" else event.text


def chrome(events, per_us=1):
    """The run as a JSON text for chrome://tracing or Perfetto: a process for each rank, a thread for each role; ``per_us`` of the
    events' steps are a microsecond."""
    rows, threads = [], {}
    for e in events:
        thread = threads.setdefault((e.rank, e.lane if e.kind not in ("copy", "mma") else f"{_owner(e)}, asynchronous"), len(threads) + 1)
        begin, length = e.begin / per_us, max(e.end - e.begin, 1) / per_us
        rows.append({"name": e.text, "cat": e.kind, "ph": "X", "ts": begin, "dur": length, "pid": e.rank,
                     "tid": thread, "args": {"at": where(e.place) if e.place else ""}})
    names = [{"name": "thread_name", "ph": "M", "pid": rank, "tid": tid, "args": {"name": lane}} for (rank, lane), tid in threads.items()]
    ranks = [{"name": "process_name", "ph": "M", "pid": r, "args": {"name": f"rank {r}"}} for r in sorted({e.rank for e in events})]
    return json.dumps({"traceEvents": ranks + names + rows, "displayTimeUnit": "ms"})


def _owner(event):
    """Name of the role that issued an operation."""
    return event.lane.split(" of ", 1)[-1] if " of " in event.lane else event.lane


def svg(events, title, marks=(), last=160, width=1200, per_us=0):
    """The last steps of a run as an SVG: a row for each role, a box for what it does, grey while it waits, an axis below.

    Args:
        marks: lanes to emphasise, such as the two of a race. last: how many steps. per_us: how many of them are a microsecond; 0: they
            are no times.
    """
    if not events:
        return _document(title, width, 40, [])
    end = max(e.end for e in events)
    start = max(end - last, 0)
    shown = [e for e in events if e.end >= start]
    lanes = sorted({(e.rank, -1 if e.block is None else e.block, *_numbered(_owner(e)), _owner(e)) for e in shown})
    rows = {lane: i for i, (*_, lane) in enumerate(lanes)}
    left, height, unit = 230, 22, (width - 250) / (end - start + 1)
    parts = []
    for lane, i in rows.items():
        y = 40 + i * height
        weight, ground = ("bold", "#fff4e5") if lane in marks else ("normal", "#f7f8fa")
        parts.append(f'<rect x="{left}" y="{y}" width="{width - 250}" height="{height - 2}" fill="{ground}"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end" font-weight="{weight}">{escape(lane)}</text>')
    for e in sorted(shown, key=lambda e: e.kind != "wait"):
        x, y = left + (max(e.begin, start) - start) * unit, 40 + rows[_owner(e)] * height
        below = 11 if e.kind in ("copy", "mma") else 0
        place = escape(where(e.place)) if e.place else ""
        size = max((e.end - max(e.begin, start)) * unit, max(unit, 3) - 1)
        parts.append(f'<rect x="{x:.1f}" y="{y + 2 + below}" width="{size:.1f}" height="{7 if below else 16}" fill="{COLOURS[e.kind]}">'
                     f"<title>step {e.begin}-{e.end}: {escape(e.lane)} {escape(e.text)} {place}</title></rect>")
    bottom = 40 + len(rows) * height
    parts += _axis(left, bottom, start, end, unit, per_us) + _legend(left, bottom + 34, {e.kind for e in shown})
    return _document(title, width, bottom + 44, parts)


def _numbered(lane):
    """("consumer", 10) of "consumer 10", so that 10 comes after 9."""
    words, _, number = lane.rpartition(" ")
    return (words, int(number)) if number.isdigit() else (lane, -1)


def _axis(left, y, start, end, unit, per_us):
    """At most ten ticks: microseconds since the first step that is shown, or numbers of steps."""
    per, word = (per_us, " µs") if per_us else (1, "")
    span = (end - start) / per
    step = next(m * 10**e for e in range(-3, 12) for m in (1, 2, 5) if span <= 10 * m * 10**e)
    first, parts = (0, []) if per_us else (start, [])
    step = step if per_us else max(int(step), 1)
    ticks = [n * step for n in range(-int(-first // step), int((first + span) / step) + 1)]
    for tick in ticks:
        x = left + (tick - first) * per * unit
        last = word if tick == ticks[-1] else ""
        parts.append(f'<path d="M{x:.1f} 36V{y + 3}" stroke="#d5d9e0" stroke-width="0.7"/>'
                     f'<text x="{x:.1f}" y="{y + 14}" text-anchor="middle" fill="#555">{tick:.10g}{last}</text>')
    return parts


def _legend(x, y, kinds):
    parts = []
    for kind, colour in COLOURS.items():
        if kind not in kinds:
            continue
        parts.append(f'<rect x="{x}" y="{y - 8}" width="9" height="9" fill="{colour}"/><text x="{x + 13}" y="{y}">{kind}</text>')
        x += 75
    return parts


def _document(title, width, height, parts):
    lines = textwrap.wrap(title, width // 7, max_lines=2, placeholder=" ...")
    words = "".join(f'<text x="10" y="{(22, 15)[len(lines) > 1] + 16 * i}" font-size="13">{escape(t)}</text>' for i, t in enumerate(lines))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="11">'
            f'<rect width="100%" height="100%" fill="white"/>{words}' + "".join(parts) + "</svg>")

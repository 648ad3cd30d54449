"""A picture of a timeline: a lane for each role, as a PNG; needs the extra ``plots`` (matplotlib)."""

import json
from pathlib import Path

from ..errors import ConfigError, UnsupportedError
from ..interpreter.history import Event

#: Kinds of event -> (colour, what it is called).
KINDS = {"wait": ("#d7dade", "waits"), "copy": ("#5b9bd5", "bulk copy"), "mma": ("#59a14f", "multiplies"),
         "access": ("#e8a33d", "loads and stores"), "signal": ("#d9534f", "signals")}
_ORDER = {"loader": 0, "consumer": 1, "storer": 2, "communicator": 3}


def lanes(events, per_rank=2, ranks=2):
    """The lanes to show, in order: of the first ranks, the first SMs that compute and the first that communicate, each role once for
    every worker (of communicators the first two)."""
    found = {}
    for e in events:
        if e.block is not None and e.rank < ranks:
            found.setdefault((e.rank, e.role == "communicator"), set()).add(e.block)
    chosen = {(rank, block) for (rank, _), blocks in found.items() for block in sorted(blocks)[:per_rank]}
    rows, communicators = {}, {}
    for e in events:
        name = owner(e)
        if (e.rank, e.block) in chosen and name not in rows:
            if e.role == "communicator":
                key = e.rank, e.block
                communicators[key] = communicators.get(key, 0) + 1
                if communicators[key] > 2:
                    continue
            rows[name] = e.rank, e.block, _ORDER.get(e.role, 4), name
    return [name for name, _ in sorted(rows.items(), key=lambda item: item[1])]


def load(path):
    """The events of a timeline that was written as JSON, in nanoseconds. Raises ConfigError for a file that is none."""
    try:
        rows = json.loads(Path(path).read_text())["traceEvents"]
        names = {(r["pid"], r["tid"]): r["args"]["name"] for r in rows if r["name"] == "thread_name"}
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"timeline: {path} is no timeline. It is JSON as python -m pknumba timeline writes it. Name such a "
                          "file.") from error
    found = []
    for r in rows:
        if r["ph"] == "X":
            lane = names[r["pid"], r["tid"]].removesuffix(", asynchronous")
            words = lane.replace(" SM ", " block ").split()
            block = int(words[3]) if words[2:3] == ["block"] else None
            begin = round(r["ts"] * 1e3)
            found.append(Event(begin, begin + round(r["dur"] * 1e3), lane, r["pid"], block, words[4] if block is not None else None,
                               r["cat"], r["name"], None))
    return found


def owner(event):
    """The role that an event belongs to: an asynchronous operation belongs to whoever issued it."""
    return event.lane.split(" of ", 1)[-1]


def draw(events, path, title, lanes_shown=None, window=None):
    """Write the PNG.

    Args:
        events: interpreter Events in nanoseconds. lanes_shown: names of roles; None: ``lanes(events)``.
        window: (first, last) microsecond; None: all.

    Raises UnsupportedError without matplotlib.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise UnsupportedError("timeline: matplotlib is not installed. Pictures need it. pip install 'pknumba[plots]', or write the JSON "
                               "only.") from error
    names = lanes_shown or lanes(events)
    rows = {name: len(names) - 1 - i for i, name in enumerate(names)}
    figure = Figure(figsize=(13, 1.2 + 0.27 * len(rows)))
    axes = figure.add_subplot()
    tasks = any(e.text.startswith("task ") for e in events)             # recorded on a GPU: waits lie within tasks
    for kind, (colour, _) in sorted(KINDS.items(), key=lambda item: tasks and item[0] == "wait"):
        here = [e for e in events if e.kind == kind and owner(e) in rows]
        for name, row in rows.items():
            bars = [(e.begin / 1e3, max(e.end - e.begin, 1) / 1e3) for e in here if owner(e) == name]
            low, high = ((0.3, 0.4) if tasks else (0.1, 0.8)) if kind == "wait" else (0.2, 0.6)
            axes.broken_barh(bars, (row + low, high), color=colour, linewidth=0)
    axes.set_yticks([row + 0.5 for row in rows.values()], list(rows), fontsize=7)
    axes.set(xlabel="microseconds", title=title, ylim=(0, len(rows)))
    if window:
        axes.set_xlim(*window)
    axes.legend(handles=[Patch(color=colour, label=text) for colour, text in KINDS.values()], ncols=len(KINDS), fontsize=7,
                loc="upper center", bbox_to_anchor=(0.5, -0.6 / figure.get_figheight()))
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=120, bbox_inches="tight", metadata={"Software": None})

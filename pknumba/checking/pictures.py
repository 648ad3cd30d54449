"""The wait-for graph of a deadlock as an SVG: a column for each rank, a box for tasks that wait for the same, arrows: waits for."""

from html import escape

from ..interpreter.waits import STATES

_ROW, _BOX, _GAP = 78, 260, 60


class _Box:
    """Tasks that are shown as one."""

    def __init__(self, names, row, state):
        self.names, self.row, self.state = names, row, state
        words = names[0].split()
        self.rank = int(words[1])
        self.role = next((w for w in words[4:] if not w.isdigit()), words[-1])

    def lines(self):
        """What it says."""
        if self.row is None:
            who = self.names[0] if len(self.names) == 1 else f"rank {self.rank} {self.role}s ({len(self.names)} tasks)"
            return [who, STATES.get(self.state, "waits").replace("has", "has" if len(self.names) == 1 else "have")]
        more = f" and {len(self.names) - 1} more" if len(self.names) > 1 else ""
        why, _, rest = self.row["why"].partition(" (")
        return [self.names[0] + more, self.row["site"], why, rest.rstrip(")")]


def waits(graph, title):
    """The SVG of a WaitGraph."""
    boxes = _boxes(graph)
    of = {name: box for box in boxes for name in box.names}
    columns = {rank: i for i, rank in enumerate(sorted({b.rank for b in boxes}))}
    at, used = {}, {}
    for box in boxes:
        column = columns[box.rank]
        row = used[column] = used.get(column, -1) + 1
        at[box] = 20 + column * (_BOX + _GAP), 46 + row * _ROW
    edges = {(of[a], of[b]): a in graph.circle and b in graph.circle for a, b in graph.edges if a in of and b in of}
    parts = ['<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
             '<path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>']
    parts += [_arrow(at[a], at[b], strong) for (a, b), strong in edges.items() if a is not b]
    parts += [_draw(box, *at[box], graph) for box in boxes]
    width, height = max(40 + len(columns) * (_BOX + _GAP), 500), 60 + (max(used.values(), default=0) + 1) * _ROW
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="11">'
            f'<rect width="100%" height="100%" fill="white"/><text x="20" y="26" font-size="14">{escape(title)}</text>'
            + "".join(parts) + "</svg>")


def _boxes(graph):
    """Waiting tasks first, then those that could help and do not wait."""
    found = {}
    for task, r in graph.waits.items():
        found.setdefault((0, r["rank"], r.get("block") or 0, r.get("role") or "", r["why"]), ([], r, "waits"))[0].append(task)
    for task in sorted({b for _, b in graph.edges} - set(graph.waits)):
        words, state = task.split(), graph.states[task]
        role = next((w for w in words[4:] if not w.isdigit()), "")
        found.setdefault((1, int(words[1]), 0, role, state), ([], None, state))[0].append(task)
    return [_Box(*value) for _, value in sorted(found.items(), key=lambda item: item[0])]


def _arrow(a, b, strong):
    (x1, y1), (x2, y2) = a, b
    style = 'stroke="#d9534f" stroke-width="2"' if strong else 'stroke="#777"'
    if x1 == x2:
        x, bend = x1 + _BOX, x1 + _BOX + 36
        return f'<path d="M{x} {y1 + 34}C{bend} {y1 + 34} {bend} {y2 + 20} {x} {y2 + 20}" fill="none" {style} marker-end="url(#end)"/>'
    start, end = (x1 + _BOX, x2) if x2 > x1 else (x1, x2 + _BOX)
    return f'<path d="M{start} {y1 + 34}L{end} {y2 + 20}" fill="none" {style} marker-end="url(#end)"/>'


def _draw(box, x, y, graph):
    blamed = any(n in graph.circle or n in graph.blame for n in box.names)
    fill = "#fde2e1" if blamed else "#eef1f5" if box.row else "#ffffff"
    lines, room = box.lines(), _BOX * 10 // 63
    rows = "".join(f'<tspan x="{x + 8}" dy="14">{escape(line if len(line) <= room else line[:room - 3] + "...")}</tspan>' for line in lines)
    return (f'<g><title>{escape(" | ".join([*lines, *box.names]))}</title><rect x="{x}" y="{y}" width="{_BOX}" height="64" rx="6" '
            f'fill="{fill}" stroke="#889"/><text x="{x + 8}" y="{y + 2}">{rows}</text></g>')

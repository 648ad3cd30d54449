"""Who waits for whom when everything has stopped: the wait-for graph of a deadlock, as text and as a picture."""

from html import escape

_STATES = {"ended": "has ended", "not started": "has not started", "runs": "could run"}


class WaitGraph:
    """Made of ``DeadlockError.waiting``, and of {counter: roles that signal it}.

    Attributes:
        waits: {task: why it waits}, roles only. edges: [(task, task that could end its wait)]. states: {task: "waits" | "ended" | ...}.
        circle: tasks that wait for each other in a circle, or []. blame: what breaks the chain: {task that waits: [names]} where
            nobody that could end the wait is itself waiting (they have ended, or there is none).
    """

    def __init__(self, rows, signals=None):
        self.signals = signals or {}
        self.rows = {r["task"]: r for r in rows}
        roles = [r for r in rows if r.get("role")] or rows
        self.waits = {r["task"]: r for r in roles}
        self.states = {name: state for r in roles for name, state in r["awaits"]} | {t: "waits" for t in self.waits}
        self.edges = [(r["task"], name) for r in roles for name, _ in r["awaits"]]
        self.circle = self._circle()
        self.blame = {t: [n for n, _ in r["awaits"]] for t, r in self.waits.items() if not any(s == "waits" for _, s in r["awaits"])}

    def _circle(self):
        """The shortest circle."""
        after, best = {}, []
        for a, b in self.edges:
            after.setdefault(a, []).append(b)
        for start in self.waits:
            found = _path(start, after, self.waits)
            if found and (not best or len(found) < len(best)):
                best = found
        return best

    def text(self):
        """A few lines: the tasks that nobody can help, then the circle."""
        lines, same = [], {}
        for task, names in self.blame.items():
            r = self.waits[task]
            same.setdefault((r["rank"], r.get("block"), r.get("role"), r["why"], tuple(names)), []).append(task)
        for task, *others in list(same.values())[:6]:
            r, names = self.waits[task], self.blame[task]
            more = f" (and {len(others)} more worker{'s' if len(others) > 1 else ''})" if others else ""
            seen = f": expected {r['expected']}, seen {r['seen']}" if r["expected"] is not None else ""
            lines.append(f"  {task}{more} at {r['site']} waits for {r['why'].split(' (')[0]}{seen}. It should come from "
                         f"{self._source(r, names)}.")
        if len(same) > 6:
            lines.append(f"  and {len(same) - 6} more like these")
        if self.circle:
            lines.append("  in a circle: " + " -> ".join([*self.circle, self.circle[0]]))
            lines += [f"    {t} at {self.waits[t]['site']} waits for {self.waits[t]['why'].split(' (')[0]}" for t in self.circle]
        return "\n".join(lines)

    def _source(self, row, names):
        """Who should have done it: tasks of one role and state in a few words."""
        groups = {}
        for n in names:
            words = n.split()
            role = next((w for w in words[4:] if not w.isdigit()), n) if len(words) > 4 else n
            groups.setdefault((role, self.states[n]), []).append(n)
        told = [f"{' and '.join(same)} ({_STATES.get(state, 'waits')})" if len(same) < 3 else
                f"the {role}s of {_ranks(same)} ({len(same)} tasks: {_STATES.get(state, 'waits').replace('has', 'have')})"
                for (role, state), same in groups.items()]
        roles = self.signals.get(row["why"].partition("[")[0])
        if not told and roles:
            told = [f"the {' or '.join(roles)}, the only role that signals it, and none has"]
        return ", ".join(told) or "somebody, but no role has ever done it"

    def svg(self, title="deadlock", width=1200):
        """The graph: a box for each task in a grid, ranks side by side; red: in the circle or without help; arrows: waits for."""
        tasks = sorted(set(self.waits) | {b for _, b in self.edges}, key=lambda t: (self._place(t), t))
        columns = {p: i for i, p in enumerate(sorted({self._place(t) for t in tasks}))}
        across = max(1, min(len(columns), 4))
        at, used = {}, {}
        for t in tasks:
            column = columns[self._place(t)] % across
            row = used[column] = used.get(column, -1) + 1
            at[t] = 20 + column * (width - 20) // across, 50 + row * 74
        box = (width - 20) // across - 70
        parts = ['<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
                 '<path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>']
        parts += [self._arrow(at[a], at[b], box, a in self.circle and b in self.circle) for a, b in self.edges]
        parts += [self._box(t, *at[t], box) for t in tasks]
        height = 50 + max(used.values(), default=0) * 74 + 80
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="11">'
                f'<rect width="100%" height="100%" fill="white"/><text x="10" y="24" font-size="14">{escape(title)}</text>'
                + "".join(parts) + "</svg>")

    def _place(self, task):
        words = task.split()
        return tuple(int(words[i + 1]) for i, w in enumerate(words[:-1]) if w in ("rank", "block") and words[i + 1].isdigit())

    def _arrow(self, a, b, box, strong):
        (x1, y1), (x2, y2) = a, b
        style = 'stroke="#d9534f" stroke-width="2"' if strong else 'stroke="#999"'
        if x1 == x2:
            x, bend = x1 + box, x1 + box + 34
            return f'<path d="M{x} {y1 + 28}C{bend} {y1 + 28} {bend} {y2 + 20} {x} {y2 + 20}" fill="none" {style} marker-end="url(#end)"/>'
        start, end = (x1 + box, x2) if x2 > x1 else (x1, x2 + box)
        return f'<path d="M{start} {y1 + 28}L{end} {y2 + 20}" fill="none" {style} marker-end="url(#end)"/>'

    def _box(self, task, x, y, box):
        r, state = self.waits.get(task), self.states.get(task, "waits")
        fill = "#fde2e1" if task in self.circle or task in self.blame else "#eef1f5" if r else "#ffffff"
        lines = [task, *([f"{r['site']}", r["why"]] if r else [_STATES.get(state, state)])]
        room = box // 6
        rows = "".join(f'<tspan x="{x + 8}" dy="14">{escape(line if len(line) <= room else line[:room - 3] + "...")}</tspan>'
                       for line in lines)
        return (f'<g><title>{escape(" | ".join(lines))}</title><rect x="{x}" y="{y}" width="{box}" height="56" rx="6" fill="{fill}" '
                f'stroke="#889"/><text x="{x + 8}" y="{y + 2}">{rows}</text></g>')


def _ranks(names):
    ranks = sorted({int(n.split()[1]) for n in names})
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _path(start, after, known):
    """The shortest way from start back to it, or []."""
    came, queue = {}, [start]
    for task in queue:
        for other in after.get(task, ()):
            if other == start:
                way = [task]
                while way[-1] != start:
                    way.append(came[way[-1]])
                return way[::-1]
            if other in known and other not in came:
                came[other] = task
                queue.append(other)
    return []

"""Who waits for whom when everything has stopped: the wait-for graph of a deadlock."""

#: States of tasks that do not wait, in words.
STATES = {"ended": "has ended", "not started": "has not started", "runs": "could run"}


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
        told = [f"{' and '.join(same)} ({STATES.get(state, 'waits')})" if len(same) < 3 else
                f"the {role}s of {_ranks(same)} ({len(same)} tasks: {STATES.get(state, 'waits').replace('has', 'have')})"
                for (role, state), same in groups.items()]
        roles = self.signals.get(row["why"].partition("[")[0])
        if not told and roles:
            told = [f"the {' or '.join(roles)}, the only role that signals it, and none has"]
        return ", ".join(told) or "somebody, but no role has ever done it"


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

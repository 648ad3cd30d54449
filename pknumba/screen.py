"""What goes to a terminal: colour where there is one, tables, and a bar for whatever takes more than two seconds."""

import os
import sys

__all__ = ["colours", "paint", "table", "Bar"]

_CODES = {"good": "32", "note": "33", "bad": "31;1", "head": "1", "dim": "2"}


def colours(stream=None):
    """Whether to write colours to a stream (standard output): to a terminal, unless NO_COLOR is set or TERM is "dumb". Not under mpirun,
    which gives its ranks terminals of their own that end in a pipe. FORCE_COLOR overrides."""
    stream = sys.stdout if stream is None else stream
    if os.environ.get("FORCE_COLOR"):
        return True
    if any(name in os.environ for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")):
        return False
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text, kind, on):
    """`text` in the colour of a kind ("good", "note", "bad", "head", "dim"), if ``on``."""
    return f"\033[{_CODES[kind]}m{text}\033[0m" if on and kind in _CODES else text


def table(rows, indent="  "):
    """Lines of a table whose columns are as wide as their widest entry; the last column is not padded."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max((len(row[i]) for row in rows if i < len(row) - 1), default=0) for i in range(max(map(len, rows), default=0))]
    return [indent + "  ".join(cell.ljust(widths[i]) if i < len(row) - 1 else cell for i, cell in enumerate(row)).rstrip()
            for row in rows]


class Bar:
    """A progress bar on standard error, which shows itself after two seconds, and only on a terminal.

    Args:
        total: steps. what: what is done, in a word or two. on: False for a rank that should be silent.

    Use it as a context manager, or as ``for x in Bar.over(things, "kernels")``.
    """

    def __init__(self, total, what, on=True):
        from tqdm import tqdm
        # disable=None: off where standard error is no terminal
        self._bar = tqdm(total=total, desc=what, delay=2, leave=False, disable=None if on else True, dynamic_ncols=True)

    @classmethod
    def over(cls, things, what, on=True):
        """Yield each of the things, a step each."""
        things = list(things)
        with cls(len(things), what, on) as bar:
            for thing in things:
                yield thing
                bar.step()

    def step(self, note=""):
        """One step is done. note: a few words behind the bar."""
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._bar.close()

"""What goes to a terminal: colour where there is one, tables, and a bar for whatever takes more than two seconds."""

import contextlib
import os
import sys
import threading
import time

__all__ = ["colours", "paint", "table", "Bar", "Waiting"]

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


class Waiting:
    """Says on standard error, every second from the third on and only on a terminal, how long something has taken. A context manager.

    Args:
        what: in a few words. on: False for a rank that should be silent.
    """

    def __init__(self, what, on=True):
        self._what, self._on, self._done, self._thread = what, on and sys.stderr.isatty(), threading.Event(), None

    def __enter__(self):
        if self._on:
            self._thread = threading.Thread(target=self._tick, daemon=True)
            self._thread.start()
        return self

    def _tick(self):
        start = time.monotonic()
        if self._done.wait(2):
            return
        while not self._done.wait(1):
            sys.stderr.write(f"\r{self._what}: {time.monotonic() - start:.0f} s ")
            sys.stderr.flush()
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()

    def __exit__(self, *error):
        self._done.set()
        if self._thread:
            self._thread.join()


class Bar:
    """A progress bar on standard error, which shows itself after two seconds, and only on a terminal.

    Args:
        total: steps. what: what is done, in a word or two. on: False for a rank that should be silent.

    Use it as a context manager, or as ``for x in Bar.over(things, "kernels")``.
    """

    def __init__(self, total, what, on=True):
        self._bar = None
        if on and sys.stderr.isatty():
            with contextlib.suppress(ImportError):          # no bar is worth an error: machines with bundles may not have it
                from tqdm import tqdm
                self._bar = tqdm(total=total, desc=what, delay=2, leave=False, dynamic_ncols=True)

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
        if self._bar is not None:
            if note:
                self._bar.set_postfix_str(note, refresh=False)
            self._bar.update()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self._bar is not None:
            self._bar.close()

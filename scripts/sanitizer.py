"""Reads what compute-sanitizer prints: its findings with their source lines, and which of them are explained.

A finding is a line that begins with ``=========`` and one space, but for banners and summaries, with the indented lines below it. Its
source lines are those that it names (cubins made with PKNUMBA_LINES=1 know them).
"""

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

__all__ = ["Finding", "Reader", "Explained", "EXPLAINED", "explain", "told"]

PACKAGE = Path(__file__).resolve().parent.parent / "pknumba"
_LINE = re.compile(r"^=========( +)(.*\S)")
#: What begins neither a finding nor one of its details.
_BANNER = re.compile(r"COMPUTE-SANITIZER|(ERROR|RACECHECK|LEAK) SUMMARY|Target application|Attach|Process |Saved |Host Frame|$")
_DETAIL = re.compile(r"at |and |Uninitialized ")
_WHERE = re.compile(r" in (?:[^ ]*/)?([^ /]+\.py):(\d+)")
#: Mangled names of kernels with their parameters, of which only the kernel's is of interest.
_SYMBOL = re.compile(r"(?:\w+::)*?((?:[A-Z]\w*::)?\w+)\[abi[^\]]*\]\([^)]*\)")


@dataclass
class Finding:
    """What a tool reported once.

    Attributes:
        text: its first line and what it adds, one line. where: [(file name, line)] of the accesses.
    """

    text: str
    where: list

    def add(self, detail):
        """One more line of it."""
        self.where += [(file, int(line)) for file, line in _WHERE.findall(detail)]
        self.text += " " + detail


class Reader:
    """Collects findings from a tool's lines, one after the other."""

    def __init__(self):
        self.found, self.open = [], False

    def read(self, line):
        """Whether the line is the tool's."""
        match = _LINE.match(line)
        if not match:
            return line.startswith("=========")
        text = _SYMBOL.sub(r"\1", match[2])
        if len(match[1]) > 1:
            if self.open and _DETAIL.match(text):
                self.found[-1].add(_shorter(text))
        else:
            self.open = not _BANNER.match(text)
            if self.open:
                self.found.append(Finding(_shorter(text), [(file, int(n)) for file, n in _WHERE.findall(text)]))
        return True


def _shorter(text):
    """Without folders and without addresses, which differ from run to run."""
    return re.sub(r"0x[0-9a-f]{9,}", "an address", re.sub(r" in [^ ]*/([^ /]+\.py:\d+)", r" in \1", text))


def told(findings, most=8):
    """Texts of findings, equal ones counted."""
    return [f"{n} x {text}" if n > 1 else text for text, n in Counter(f.text for f in findings).most_common(most)]


@dataclass(frozen=True)
class Explained:
    """A finding of a tool that is no fault of the kernel.

    Attributes:
        tool: that reports it. says: how its text begins (regular expression). lines: {file name: texts of the source lines, without
            indentation, of which every line that it names must be one}; empty: of findings that name none. why: it is no fault.
    """

    tool: str
    says: str
    lines: dict
    why: str


EXPLAINED = (
    Explained("initcheck", r"Host API memory access error .* on access by cudaMemcpy source", {},
              "the host reads a result that the copy engine has written, which initcheck does not see (controls.Copied); poison does"),
    Explained("initcheck", r"Uninitialized __global__ memory read",
              {"moe_combine.py": ("weigh(g.out, task.id, g.C, g.Z, g.weights, g.place, g.top_k, g.capacity)",)},
              "a warp reads rows of products that the copy engine has written, as above"),
)


def explain(tool, finding):
    """Why a finding is no fault, or None."""
    for known in EXPLAINED:
        if known.tool == tool and re.match(known.says, finding.text) and bool(known.lines) == bool(finding.where) and \
                all(_sources(file, line) & set(known.lines.get(file, ())) for file, line in finding.where):
            return known.why
    return None


@lru_cache(None)
def _sources(file, line):
    """The texts of that line in the package's files of that name."""
    texts = (path.read_text().splitlines() for path in PACKAGE.rglob(file))
    return {text[line - 1].strip() for text in texts if 0 < line <= len(text)}

"""Machine code as a list of instructions, by NVIDIA's disassembler (PyPI: nvidia-cuda-nvdisasm, part of the ``test`` extra)."""

import re
import shutil
import subprocess
import sys
from collections import Counter, namedtuple
from pathlib import Path

#: ``address``, ``predicate`` ("@!P0" or ""), ``name`` with its modifiers ("UTMALDG.2D"), ``operands`` as text.
Instruction = namedtuple("Instruction", "address predicate name operands")

_LINE = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][A-Za-z0-9_.]*)\s*(.*?)\s*;")
_LABEL = re.compile(r"(\.L_x_\d+):")


def find_nvdisasm():
    """Path of the disassembler, or None."""
    for folder in map(Path, sys.path):
        for path in folder.glob("nvidia/cu*/bin/nvdisasm"):
            return str(path)
    return shutil.which("nvdisasm")


class Code:
    """The instructions of a cubin with one kernel, in order, and its labels (name -> index)."""

    def __init__(self, cubin, tool, folder):
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        text = subprocess.run([tool, "-c", str(path)], capture_output=True, text=True, timeout=60, check=True).stdout
        self.instructions, self.labels = [], {}
        for line in text.splitlines():
            found = _LINE.match(line)
            if found:
                self.instructions.append(Instruction(int(found[1], 16), found[2] or "", found[3], found[4]))
            elif label := _LABEL.match(line):
                self.labels[label[1]] = len(self.instructions)

    def counts(self):
        """How often each opcode occurs, without modifiers."""
        return Counter(i.name.split(".")[0] for i in self.instructions)

    def find(self, start, *operands):
        """Indices of the instructions whose name begins with ``start`` and whose operands contain these texts."""
        return [n for n, i in enumerate(self.instructions) if i.name.startswith(start) and all(o in i.operands for o in operands)]

    def loop(self, start):
        """(first, last) index of the innermost loop around all instructions whose name begins with ``start``."""
        inside = self.find(start)
        loops = []
        for n in self.find("BRA"):
            target = re.search(r"\.L_x_\d+", self.instructions[n].operands)
            first = self.labels[target[0]] if target else n
            if first <= inside[0] and n >= inside[-1]:
                loops.append((first, n))
        return min(loops, key=lambda loop: loop[1] - loop[0])

    def before(self, n, start, within=40):
        """Index of the last instruction before ``n`` whose name begins with ``start``; None if there is none so near."""
        return next((k for k in range(n - 1, max(-1, n - 1 - within), -1) if self.instructions[k].name.startswith(start)), None)

    def after(self, n, start, within=40):
        """Index of the first instruction after ``n`` whose name begins with ``start``; None if there is none so near."""
        end = min(len(self.instructions), n + 1 + within)
        return next((k for k in range(n + 1, end) if self.instructions[k].name.startswith(start)), None)

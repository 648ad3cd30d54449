"""Draws the pictures of docs/concepts.md: python scripts/pictures.py writes docs/pictures/*.svg, --check says whether they are current."""

import argparse
import sys
from pathlib import Path

from pknumba.teaching import Drawing

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"


def roles():
    """Who does what on one SM."""
    d = Drawing(760, 250, "One SM: three roles, two rings, nobody waits for the whole")
    d.box(20, 50, 120, 60, "A and B\nin global memory", "memory").box(620, 50, 120, 60, "C\nin global memory", "memory")
    d.box(180, 50, 110, 60, "loader\n(1 thread)", "role").box(325, 50, 120, 60, "consumer\n(128 threads each)", "role", 11)
    d.box(480, 50, 110, 60, "storer\n(1 thread)", "role")
    d.row(165, 160, ["a, b [0]", "a, b [1]", "a, b [2]", "a, b [3]"], width=56).row(470, 160, ["c [0]", "c [1]"], width=56)
    d.arrow(140, 80, 178, 80).arrow(225, 110, 225, 158, "load_async").arrow(385, 158, 385, 112, "mma").arrow(440, 112, 490, 158)
    d.arrow(550, 158, 550, 112, "store_async").arrow(590, 80, 618, 80).words(415, 150, "store", 11)
    d.words(165, 215, "ab_full: the loader's bytes are there. ab_empty: every consumer has read the stage.", 11)
    d.words(165, 232, "c_full: the panel is written. c_empty: the copy engine has read it.", 11)
    return d


def phases():
    """Why the parity of a phase is computed."""
    d = Drawing(760, 235, "ring(step, 4): stage = step % 4, phase = step // 4 & 1")
    for i in range(10):
        d.box(20 + 72 * i, 45, 66, 44, f"step {i}\nstage {i % 4}, {i // 4 & 1}", "tile" if i // 4 & 1 == 0 else "peer", 11)
    d.words(20, 115, "The loader waits for phase ^ 1 of ab_empty: the lap before. In the first lap nothing was ever loaded, so it "
            "passes at once.")
    d.words(20, 138, "The consumer waits for phase of ab_full: this lap's bytes.")
    d.words(20, 161, "A wait knows a parity, not a number: whoever is two laps early finds the parity that it waits for, and does not "
            "wait.")
    d.words(20, 184, "So whoever shares a ring enters it in an order that something enforces (docs/decisions/0004).")
    d.words(20, 215, "Roles keep no state: nothing to initialise, to forget, or to advance twice.", weight="bold")
    return d


def ranks():
    """GEMM + all-reduce over two ranks."""
    d = Drawing(760, 300, "GEMM + all-reduce: compute SMs and communicating SMs of two ranks")
    for r, y in ((0, 50), (1, 175)):
        d.box(20, y, 720, 105, "", "plain").words(30, y + 18, f"rank {r}", 12, weight="bold")
        d.box(90, y + 28, 180, 55, "124 SMs: loader, consumers,\nstorer of Gemm", "role", 11)
        d.box(330, y + 28, 150, 55, f"C of rank {r}\n(symmetric)", "memory", 11)
        d.box(540, y + 28, 180, 55, "8 SMs: communicators\nof the tiles it owns", "peer", 11)
        d.arrow(270, y + 50, 328, y + 50, "store").arrow(480, y + 45, 538, y + 45, "sum")
    d.arrow(420, 135, 600, 202, "", "#b4458f", True).arrow(420, 200, 600, 136, "", "#b4458f", True)
    d.words(615, 166, "reads every rank's", 11).words(615, 179, "tile, writes to all", 11)
    d.words(90, 170, "storer: store_async_wait, then signal(done, tile, owner)", 11)
    d.words(90, 295, "communicator: wait_until(done, tile, epoch * ranks), then all_reduce", 11)
    return d


def epochs():
    """Counters that only grow."""
    d = Drawing(760, 200, "Counters only grow: call n of a tile waits for n * ranks signals")
    for call in range(3):
        x = 20 + 245 * call
        d.box(x, 45, 230, 90, "", "plain").words(x + 8, 62, f"call {call + 1}: wait_until(done, tile, {2 * call + 2})", 11, weight="bold")
        d.box(x + 12, 75, 95, 48, f"rank 0 signals\n{2 * call} -> {2 * call + 1}", "signal", 11)
        d.box(x + 120, 75, 95, 48, f"rank 1 signals\n{2 * call + 1} -> {2 * call + 2}", "signal", 11)
    d.words(20, 160, "Nothing is reset, so a fast rank's signal of the next call cannot be lost, and a wait tests >=, so it cannot "
            "be overshot.")
    d.words(20, 180, "The epoch lies on the device: a CUDA graph that is replayed counts on.")
    return d


def memory():
    """Symmetric memory."""
    d = Drawing(760, 232, "world.symmetric(shape, dtype): an array on every rank, visible to all")
    for r in range(3):
        x = 20 + 250 * r
        d.box(x, 50, 220, 110, "", "plain").words(x + 10, 68, f"rank {r}", 12, weight="bold")
        d.box(x + 15, 80, 190, 30, "C.local: its own", "memory", 11)
        others = ", ".join(f"C.peer({p})" for p in range(3) if p != r)
        d.box(x + 15, 118, 190, 30, others, "peer", 11)
    d.arrow(240, 133, 283, 98, "", dashed=True).arrow(490, 133, 533, 98, "", dashed=True)
    d.words(20, 185, "Ranks are processes (mpirun, torchrun: CUDA IPC), threads of one process (plain pointers),")
    d.words(20, 203, "or tasks of the interpreter (NumPy arrays).")
    d.words(20, 221, "A kernel reads and writes peers by the same primitives; the host hands it a table of addresses.")
    return d


PICTURES = {"roles": roles, "phases": phases, "ranks": ranks, "epochs": epochs, "memory": memory}


def main():
    """Write or check. Returns the exit status."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--check", action="store_true", help="write nothing; status 1 if a file is not current")
    args = p.parse_args()
    old = []
    for name, draw in PICTURES.items():
        path, text = FOLDER / f"concept_{name}.svg", draw().text + "\n"
        if args.check:
            old += [] if path.exists() and path.read_text() == text else [path.name]
        else:
            path.write_text(text)
    if old:
        print(f"pictures.py: {', '.join(old)} {'is' if len(old) == 1 else 'are'} not current. Run python scripts/pictures.py.")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())

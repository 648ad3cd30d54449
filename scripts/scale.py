#!/usr/bin/env python3
"""Writes the table of docs/scale.md and its picture from the cost model (pknumba/tuning/scale.py); --check says whether they are current.

    python scripts/scale.py --write docs/scale.md
"""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from pknumba.tuning.scale import CLUSTERS, SPLITS, across, table  # noqa: E402

PART = re.compile(r"(<!-- scale: made by scripts/scale.py -->\n).*?(<!-- end of scale -->)", re.DOTALL)
NODES = tuple(2**i for i in range(1, 11))


def written(text):
    """The document with the table as the model gives it now."""
    return PART.sub(lambda found: found[1] + "\n".join(table(counts=NODES)) + "\n" + found[2], text)


def draw(path):
    """all_reduce of 64 MiB on each rank, against the number of nodes: each split, inside and between."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    figure = Figure(figsize=(13, 4))
    for i, name in enumerate(CLUSTERS):
        axes = figure.add_subplot(1, len(CLUSTERS), i + 1)
        for split in SPLITS:
            axes.loglog(NODES, [across("all_reduce", 64 << 20, n, name, split).seconds * 1e3 for n in NODES], label=split, marker=".")
        best = [across("all_reduce", 64 << 20, n, name) for n in NODES]
        axes.fill_between(NODES, [b.inside * 1e3 for b in best], color="#76b7b2", alpha=0.3, label="inside nodes")
        axes.set(title=f"nodes of {name}", xlabel="nodes", ylabel="ms" if not i else "", xticks=NODES, xticklabels=NODES)
        axes.tick_params(axis="x", labelsize=7)
        axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--check", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.check:
        text = options.check.read_text()
        return 0 if PART.search(text) and written(text) == text else "out of date: python scripts/scale.py --write " + str(options.check)
    if options.write:
        options.write.write_text(written(options.write.read_text()))
        draw(ROOT / "docs/pictures/scale.png")
    else:
        print("\n".join(table(counts=NODES)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Plots, from the JSON lines in benchmarks/results and from the cost model; needs the extra ``plots`` (matplotlib), and no GPU.

    python benchmarks/plots.py                    every plot that there are lines for, to docs/pictures
    python benchmarks/plots.py --only exposed     those whose name contains this
"""

import argparse
import sys
from math import prod
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402 - after the choice of a backend
from table import RESULTS, newest  # noqa: E402

from pknumba.config import GemmConfig  # noqa: E402
from pknumba.tuning import H100_PAPER, OPERATORS, predict  # noqa: E402

PICTURES = RESULTS.parent.parent / "docs" / "pictures"
#: What the paper measured: K -> share of GEMM + RS that the GEMM alone does not take, M = N = 32768, eight H100s.
PAPER_EXPOSED = {512: 0.68, 1024: 0.56, 2048: 0.26, 4096: 0.004}
#: TFLOP/s of 32768 x 32768 x 4096 on each of eight H100s: none, intra, inter.
PAPER_SCHEDULES = {"gemm_reduce_scatter": (510.1, 743.7, 618.1), "gemm_all_reduce": (450.9, 172.3, 623.9)}


def exposed(lines):
    """The model against the paper's exposed communication and its three schedules."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    ks = [2 ** (9 + i / 8) for i in range(33)]
    left.plot(ks, [100 * _paper("gemm_reduce_scatter", int(k), "intra").exposed_share for k in ks], label="model")
    left.plot(list(PAPER_EXPOSED), [100 * x for x in PAPER_EXPOSED.values()], "o", label="paper, table 3")
    left.set(xscale="log", xlabel="K of each rank", ylabel="exposed communication, %")
    left.set_title("GEMM + reduce-scatter, 32768 x 32768 x K, 8 H100")
    left.set_xticks(list(PAPER_EXPOSED), list(map(str, PAPER_EXPOSED)))
    left.set_xticks([], minor=True)
    left.legend()
    names = ("apart", "intra", "switch")
    for i, (op, told) in enumerate(PAPER_SCHEDULES.items()):
        places = [4 * i + j for j in range(3)]
        right.bar([x - 0.2 for x in places], told, 0.4, color="#9aa5b1", label="paper, figure 4" if not i else None)
        model = [_paper(op, 4096, s).tflops for s in names]
        right.bar([x + 0.2 for x in places], model, 0.4, color="#3b7dd8", label=None if i else "model")
    ticks = [f"{op}\n{how}" for op in ("RS", "AR") for how in ("none", "intra", "inter")]
    right.set_xticks([4 * i + j for i in range(2) for j in range(3)], ticks)
    right.set(ylabel="TFLOP/s of a rank", title="32768 x 32768 x 4096, by kind of overlap")
    right.legend()
    return figure


def _paper(op, k, schedule):
    return predict(op, 32768, 32768, k, 8, hardware=H100_PAPER, schedule=schedule, config=GemmConfig())


def products(lines):
    """GEMM against cuBLAS: the ratio of every bfloat16 shape with B as (N, K)."""
    found = [r for r in lines if r["op"] == "gemm" and r["dtype"] == "bfloat16" and r.get("layout") == "nt" and r.get("ratio")]
    if not found:
        return None
    found.sort(key=lambda r: r["ratio"])
    figure, axes = plt.subplots(figsize=(9, 1 + 0.24 * len(found)))
    axes.barh(range(len(found)), [r["ratio"] for r in found], color=["#3b7dd8" if r["ratio"] >= 1 else "#e07b39" for r in found])
    axes.axvline(1, color="black", linewidth=0.8)
    mean = prod(r["ratio"] for r in found) ** (1 / len(found))
    axes.set_yticks(range(len(found)), ["x".join(map(str, r["shape"])) for r in found], fontsize=7)
    axes.set(xlabel="cuBLAS's time / ours", xlim=(min(0.6, found[0]["ratio"] - 0.05), None))
    axes.set_title(f"gemm, bfloat16, {found[-1]['card']}: geometric mean {mean:.3f}")
    return figure


def communicating(lines):
    """Operators on two GPUs against the number of communicating SMs, with the model's prediction."""
    found = {}
    for r in lines:
        if r["op"] in OPERATORS and "inter" in OPERATORS[r["op"]].moves and r["gpus"] == r["world"] > 1:
            found.setdefault(r["op"], []).append(r)
    if not found:
        return None
    figure, every = plt.subplots(1, len(found), figsize=(4.2 * len(found) + 1.5, 4), squeeze=False)
    colours = {shape: f"C{i}" for i, shape in enumerate(sorted({tuple(r["shape"]) for same in found.values() for r in same}))}
    for axes, (op, same) in zip(every[0], found.items()):
        for r in same:
            times = {int(n.split()[0]): us for n, us in r["medians_us"].items() if n.endswith("comm SMs")}
            shape = tuple(r["shape"])
            axes.plot(list(times), list(times.values()), "o", color=colours[shape])
            told = [predict(op, *shape, r["world"], comm_sms=c).seconds * 1e6 for c in times]
            axes.plot(list(times), told, "-", color=colours[shape])
        axes.set(yscale="log", xlabel="communicating SMs", title=op)
    keys = [plt.Line2D([], [], marker="o", color=colour, label="x".join(map(str, shape))) for shape, colour in colours.items()]
    every[0][-1].legend(handles=keys, loc="upper left", bbox_to_anchor=(1.02, 1), fontsize=8)
    every[0][0].set_ylabel("microseconds (points: measured, lines: model)")
    return figure


def bandwidth(lines):
    """What moves between ranks, against SMs, message and size."""
    kinds, found = ("SMs", "KiB of a message", "bytes"), {}
    for r in lines:
        if r["op"].startswith("micro: ") and "points" in r and "load" not in r["op"]:
            found.setdefault((-r["gpus"], r["world"]), []).append(r)
    if not found:
        return None
    figure, every = plt.subplots(len(found), 3, figsize=(13, 4 * len(found)), squeeze=False)
    for row, ((gpus, ranks), same) in zip(every, sorted(found.items())):
        for axes, kind in zip(row, kinds):
            for r in same:
                if r["layout"] == kind:
                    x, _, rate = zip(*r["points"])
                    axes.plot(x, rate, "o-", markersize=3, label=r["op"].removeprefix("micro: "))
            axes.set(xlabel=kind, xscale="log", ylabel="GB/s of a rank", ylim=(0, None))
            if axes.lines:
                axes.legend(fontsize=7)
        row[1].set_title(f"{ranks} ranks on {-gpus} GPU{'s' * (gpus < -1)}")
    return figure


def lengths(lines):
    """Attention over ranks against the rows of the sequence: TFLOP/s of a rank, ours and its first rival's."""
    found = {}
    for r in lines:
        if r["op"] in ("ring_attention", "ulysses_attention") and r["gpus"] == r["world"] > 1 and r.get("baseline_us") and r.get("tflops"):
            found.setdefault((r["op"], r["layout"]), {}).setdefault((*r["shape"][:2],), {}).setdefault(r["shape"][3], r)
    if not found:
        return None
    figure, every = plt.subplots(1, len(found), figsize=(4.2 * len(found), 4), squeeze=False)
    for axes, ((op, layout), same) in zip(every[0], sorted(found.items())):
        for i, ((batch, heads), by_rows) in enumerate(sorted(same.items())):
            rows, results = zip(*sorted(by_rows.items()))
            axes.plot(rows, [r["tflops"] for r in results], "o-", color=f"C{i}", label=f"batch {batch}, {heads} heads")
            axes.plot(rows, [r["tflops"] * r["time_us"] / r["baseline_us"] for r in results], "o--", color=f"C{i}", markerfacecolor="none")
        axes.set(xlabel="rows of the sequence", xscale="log", ylim=(0, 1.08 * axes.dataLim.y1), title=f"{op}, {layout}")
        places = sorted({rows for by_rows in same.values() for rows in by_rows})
        axes.set_xticks(places, [f"{rows // 1024}k" for rows in places])
        axes.set_xticks([], minor=True)
        axes.legend(fontsize=7, loc="lower right")
    every[0][0].set_ylabel("TFLOP/s of a rank (dashed: torch and NCCL)")
    return figure


#: Name of the picture -> function (lines) -> figure, or None where the lines say nothing of it.
PLOTS = {"model_exposed": exposed, "gemm_ratios": products, "communicating_sms": communicating, "bandwidth": bandwidth,
         "attention_lengths": lengths}
#: Picture -> which lines count, where others of the same case are newer and do not say what it shows.
SHOWN = {"communicating_sms": lambda line: sum(name.endswith("comm SMs") for name in line.get("medians_us", ())) > 1}


def main(arguments=None):
    """Draw. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--to", type=Path, default=PICTURES)
    options = parser.parse_args(arguments)
    drawn = 0
    for name, draw in PLOTS.items():
        lines = newest(options.results, SHOWN.get(name, lambda line: True)) if options.results.is_dir() else []
        figure = draw(lines) if options.only in name else None
        if figure is not None:
            options.to.mkdir(parents=True, exist_ok=True)
            figure.tight_layout()
            figure.savefig(options.to / f"{name}.png", dpi=110, metadata={"Software": None})
            plt.close(figure)
            print(options.to / f"{name}.png")
            drawn += 1
    if not drawn:
        print(f"plots: no plot named {options.only!r} has lines in {options.results}. Run a benchmark first.", file=sys.stderr)
    return 0 if drawn else 1


if __name__ == "__main__":
    sys.exit(main())

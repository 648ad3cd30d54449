"""Markdown table of the newest result of every case in benchmarks/results/*.jsonl.

    python benchmarks/table.py                     prints it
    python benchmarks/table.py --write README.md   puts it between the markers of that file; README.md holds the bfloat16 cases with a
                                                   baseline that is not ours, docs/performance.md all
    python benchmarks/table.py --check README.md   exit status 1 if the file holds another table
"""

import argparse
import json
import sys
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
BEGIN, END = "<!-- results: made by benchmarks/table.py -->", "<!-- end of results -->"
HEAD = ("| operator | shape | dtype | ranks / GPUs | time | TFLOP/s | baseline | ratio | rel. error | card, commit |\n"
        "|---|---|---|---|---|---|---|---|---|---|")


def newest(folder):
    """The last line of every case (operator, shape, dtype, world, GPUs, layout, spread, baseline), in the order of first appearance."""
    cases = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            if line.strip():
                r = json.loads(line)
                case = [r.get(key) for key in ("op", "dtype", "world", "gpus", "layout", "spread", "baseline")]
                cases[(*case, *r["shape"])] = r
    return list(cases.values())


def shown_time(us):
    """Microseconds for people."""
    return f"{us:.1f} µs" if us < 1e3 else f"{us / 1e3:.2f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"


#: How B lies in memory, by the layout of a result; how rows are spread over groups.
LAYOUTS = {"nt": ", B as (N, K)", "nn": ", B as (K, N)", "causal": ", causal"}
SPREADS = {"even": ", even", "random": ", random", "half": ", half in one group"}
#: Shapes of gemm on one GPU that stand in the README; docs/performance.md has all.
SHOWN = {(n, n, n) for n in (1024, 2048, 4096, 8192, 16384)} | {(16384, 16384, 2048), (8192, 8192, 1024), (4096, 4096, 4104)}
#: Rivals: how the names of baselines begin that are not ours.
RIVALS = ("cublas", "NCCL", "cuDNN", "torch")


def short(r):
    """Whether a result stands in the README: bfloat16, against a rival; of gemm the shapes that are ``SHOWN``."""
    rival = r["dtype"] == "bfloat16" and (r.get("baseline") or "").startswith(RIVALS)
    return rival and (r["op"] != "gemm" or tuple(r["shape"]) in SHOWN)


def row(r):
    """One row of the table."""
    baseline = f"{r['baseline']}: {shown_time(r['baseline_us'])}" if r.get("baseline_us") else "-"
    operator = r["op"] + LAYOUTS.get(r.get("layout"), "") + SPREADS.get(r.get("spread"), "")
    cells = (operator, " x ".join(map(str, r["shape"])), r["dtype"], f"{r['world']} / {r['gpus']}", shown_time(r["time_us"]),
             f"{r['tflops']:.0f}" if r.get("tflops") else "-", baseline, f"{r['ratio']:.2f}" if r.get("ratio") else "-",
             f"{r['rel_error']:.1e}" if r.get("rel_error") is not None else "-", f"{r['card']}, {r['commit']}")
    return "| " + " | ".join(cells) + " |"


def table(folder=RESULTS, keep=lambda r: True):
    """The table of the results to keep, or a sentence that there is none yet."""
    rows = [row(r) for r in newest(folder) if keep(r)]
    return "\n".join([HEAD, *rows]) if rows else "Nothing has been measured yet."


def replaced(text, new):
    """``text`` with what is between the markers replaced. Raises ValueError where they are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"no line {BEGIN!r} followed by {END!r}")
    return f"{before}{BEGIN}\n{new}\n{END}{after}"


def main():
    """Print, write or check. Returns the exit status."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = p.add_mutually_exclusive_group()
    action.add_argument("--write", type=Path, metavar="FILE")
    action.add_argument("--check", type=Path, metavar="FILE")
    args = p.parse_args()
    path = args.write or args.check
    if not path:
        print(table())
        return 0
    text = path.read_text()
    new = replaced(text, table(keep=short) if path.name == "README.md" else table())
    if args.check:
        return 0 if new == text else 1
    path.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())

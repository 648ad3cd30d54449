"""The table of ``micro.py``: bandwidths and latencies of the newest lines, with the paper's numbers for H100 and B200 beside them.

    python benchmarks/micro_table.py [FILE ...]     of these files, or of all in benchmarks/results; needs no GPU
"""

import json
import sys
from pathlib import Path

#: GB/s with all SMs and 1 GB (the paper's table 1): H100, B200; SMs that saturate (its figure 3); nanoseconds (its section 3.1.3).
PAPER_RATES = {"copy engine": (368.82, 726.13), "tma store": (350.01, 669.12), "register copy": (342.68, 628.35)}
PAPER_SMS = {"tma store": 15, "register copy": 76}
PAPER_NS = {"mbarrier": 64, "through memory": 832}
#: A point counts as saturated from this share of the best.
SATURATED = 0.9


def lines(*paths):
    """{(operator, x, ranks, GPUs): newest line} of results files. Raises ValueError where there is none."""
    found = {}
    for path in map(Path, paths):
        for text in path.read_text().splitlines() if path.is_file() else ():
            r = json.loads(text)
            if r["op"].startswith("micro: "):
                found[r["op"].removeprefix("micro: "), r.get("layout"), r["world"], r["gpus"]] = r
    if not found:
        raise ValueError("micro: no lines. The table is made from them. Run benchmarks/micro.py first.")
    return found


def saturating(points):
    """The smallest x whose rate is within 10 % of the best."""
    best = max(rate for *_, rate in points)
    return next(x for x, _, rate in points if rate >= SATURATED * best)


def table(*paths):
    """Markdown: rates with where they saturate, then latencies."""
    rates, latencies = [], []
    for (name, x, world, gpus), r in lines(*paths).items():
        where = f"{world} / {gpus}"
        if "points" in r:
            last = max(rate for *_, rate in r["points"])
            h100, b200 = PAPER_RATES.get(name, ("-", "-"))
            told = PAPER_SMS.get(name, "-") if x == "SMs" else "-"
            rates.append(f"| {name} | {where} | {last:.0f} | {h100} | {b200} | {_amount(saturating(r['points']), x)} | {told} |")
        else:
            name = name.removeprefix("latency ")
            latencies.append(f"| {name} | {where} | {r['nanoseconds']:.0f} | {PAPER_NS.get(name, '-')} |")
    head = ["| transfer | ranks / GPUs | GB/s of a rank | H100, paper | B200, paper | within 10 % from | paper, SMs |",
            "|---|---|---|---|---|---|---|"]
    more = ["", "| hand-over or access | ranks / GPUs | ns | paper, ns |", "|---|---|---|---|"]
    return "\n".join([*head, *rates, *(more + latencies if latencies else [])])


def command(r):
    """The whole command that made a result, with what started its ranks."""
    start = "" if r["world"] == 1 else f"mpirun -n {r['world']} " if r["gpus"] > 1 else f"./scripts/mps run -n {r['world']} "
    return start + r["command"]


def section(*paths):
    """The tables under a heading, for docs/performance.md; empty where there is no line."""
    try:
        found = lines(*paths)
    except ValueError:
        return ""
    commands = dict.fromkeys(f"`{command(r)}`" for r in found.values())
    return "\n\n".join(["### Links, memory and hand-overs, beside the paper's", table(*paths),
                        "*Within 10 % from*: the fewest SMs, the smallest message or transfer that reaches 90 % of the best rate.",
                        f"Made by {', '.join(commands)}."])


def _amount(n, x):
    if x != "bytes":
        return f"{n} {x}"
    return f"{n >> 20} MiB" if n >= 1 << 20 else f"{n >> 10} KiB"


def main(arguments=None):
    """Print the table. Returns the exit status."""
    paths = (sys.argv[1:] if arguments is None else arguments) or sorted((Path(__file__).resolve().parent / "results").glob("*.jsonl"))
    try:
        print(table(*paths))
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

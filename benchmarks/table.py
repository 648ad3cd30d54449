"""Markdown tables of the newest result of every case in benchmarks/results/*.jsonl.

    python benchmarks/table.py                     prints all of them
    python benchmarks/table.py --write README.md   puts them between the markers of that file: into README.md one table of a few cases
                                                   against others' work, into other files a section for each kind of result
    python benchmarks/table.py --check README.md   exit status 1 if the file holds others
"""

import argparse
import json
import sys
from math import prod
from pathlib import Path

import micro_table

RESULTS = Path(__file__).resolve().parent / "results"
BEGIN, END = "<!-- results: made by benchmarks/table.py -->", "<!-- end of results -->"
#: Columns of a table, and those of them that are said once, above the table, where all of its rows agree.
COLUMNS = ("operator", "shape", "dtype", "ranks / GPUs", "time", "TFLOP/s", "against", "its time", "ratio", "more", "rel. error", "card",
           "commit")
SHARED = ("dtype", "ranks / GPUs", "TFLOP/s", "against", "its time", "ratio", "more", "rel. error", "card")
EMPTY = "-"


def newest(folder, counts=lambda line: True):
    """The last line that counts of every case (operator, shape, dtype, world, GPUs, layout, spread, baseline), in the order of first
    appearance."""
    cases = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            if line.strip() and counts(r := json.loads(line)):
                case = [r.get(key) for key in ("op", "dtype", "world", "gpus", "layout", "spread", "baseline")]
                cases[(*case, *r["shape"])] = r
    return list(cases.values())


def shown_time(us):
    """Microseconds for people."""
    return f"{us:.1f} µs" if us < 1e3 else f"{us / 1e3:.2f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"


#: How B lies in memory, by the layout of a result; how rows are spread over groups.
LAYOUTS = {"nt": ", B as (N, K)", "nn": ", B as (K, N)", "causal": ", causal"}
SPREADS = {"even": ", even", "random": ", random", "half": ", half in one group"}
#: Rivals: how the names of baselines begin that are not ours.
RIVALS = ("cublas", "NCCL", "cuDNN", "torch")
#: Operator -> shapes that stand in the README; of an operator that is not here the largest.
HEADLINES = {"gemm": [(2048,) * 3, (4096,) * 3, (8192,) * 3, (8192, 8192, 1024)],
             "attention": [(4, 16, 16, 8192, 128), (16, 16, 16, 1536, 128)], "grouped_gemm": [(8192, 32, 7168, 2048)],
             "gemm_all_reduce": [(8192, 8192, 4096)], "gemm_reduce_scatter": [(8192, 8192, 4096)], "all_gather_gemm": [(8192, 8192, 4096)],
             "gemm_all_to_all": [(8192, 8192, 4096)],
             "all_reduce": [(32768,), (134217728,)], "all_gather": [(67108864,)], "reduce_scatter": [(134217728,)],
             "all_to_all": [(134217728,)], "ring_attention": [(1, 16, 16, 32768, 128)], "ulysses_attention": [(1, 16, 16, 32768, 128)],
             "decode_attention": [(8, 32, 8, 32768, 128)],
             "moe_layer": [(4096, 2, 8, 4096, 14336), (8192, 2, 8, 4096, 14336)], "all_reduce_rmsnorm": [(8, 8192), (512, 8192)]}


def headlines(results):
    """The results for the README: bfloat16, against a rival, each operator's HEADLINES; no variants of operators, layouts and spreads."""
    found = [r for r in results if r["dtype"] == "bfloat16" and (r.get("baseline") or "").startswith(RIVALS) and not r.get("not_run")
             and (r["op"].startswith("launch") or "(" not in r["op"]) and r.get("layout") != "nn" and r.get("spread") in (None, "even")
             and (r["op"] != "gemm" or r["world"] == 1)]
    largest = {}
    for r in found:
        largest[r["op"]] = max(largest.get(r["op"], ()), tuple(r["shape"]), key=prod)
    return [r for r in found if tuple(r["shape"]) in HEADLINES.get(r["op"], [largest[r["op"]]])]


def _overhead(r):
    return "records" in r["op"] or "bounded" in r["op"]


def _place(r):
    return "one" if r["world"] == 1 else "apart" if r["gpus"] == r["world"] else "together"


def _of(place, *names):
    """Whether a result is of one of these operators, on one GPU, on one for each rank, or on fewer than ranks."""
    return lambda r: _place(r) == place and r["op"].split()[0].strip(",") in names and not _overhead(r)


PRODUCTS = ("gemm", "gemm_all_reduce", "gemm_reduce_scatter", "all_gather_gemm", "gemm_all_to_all")
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send_recv",
               "all_reduce_rmsnorm")
#: Sections of docs/performance.md: (title, whether a result belongs there). The first that takes it has it.
SECTIONS = (
    ("gemm on one GPU, bfloat16", lambda r: _of("one", "gemm")(r) and r["dtype"] == "bfloat16"),
    ("gemm on one GPU, other dtypes", _of("one", "gemm")),
    ("Attention over ranks, a GPU for each rank", _of("apart", "ring_attention", "ulysses_attention", "decode_attention")),
    ("Attention", lambda r: "attention" in r["op"]),
    ("Experts over ranks, a GPU for each rank", _of("apart", "moe_layer")),
    ("Groups and experts", lambda r: r["op"].startswith(("grouped_gemm", "moe_"))),
    ("Products that communicate, a GPU for each rank", _of("apart", *PRODUCTS)),
    ("Collectives, a GPU for each rank", _of("apart", *COLLECTIVES)),
    ("Products that communicate, ranks that share a GPU", _of("together", *PRODUCTS)),
    ("Collectives, ranks that share a GPU", _of("together", *COLLECTIVES)),
    ("Time of the host", lambda r: r["op"].startswith(("launch", "first call", "host time"))),
    ("What recording and bounded waits cost", _overhead),
    ("What the card reaches by the vendor's means", lambda r: r["op"].startswith("roof")),
    ("Others", lambda r: True),
)


#: Fields that only some results have: what a call of the host is made of, the energy of a call.
MORE = {"look_up_us": "look-up {:.1f} µs", "launch_us": "Python around the driver {:.1f} µs", "driver_us": "driver {:.1f} µs",
        "in_a_graph_us": "in a graph {:.2f} µs", "millijoules": "{:.1f} mJ", "baseline_millijoules": "it {:.1f} mJ",
        "rival_compiled": "its small kernels by {}"}


def more(r):
    """Those fields in words."""
    return ", ".join(text.format(r[name]) for name, text in MORE.items() if r.get(name) not in (None, "torch.compile")).rstrip(": ")


def cells(r):
    """{column: text} of a result."""
    name, time = (r["baseline"], shown_time(r["baseline_us"])) if r.get("baseline_us") else (EMPTY, EMPTY)
    if r.get("not_run"):
        name = f"{r['baseline']}: not run, {r['not_run'].replace('|', '/')}"
    return {"operator": r["op"] + LAYOUTS.get(r.get("layout"), "") + SPREADS.get(r.get("spread"), ""),
            "shape": " x ".join(map(str, r["shape"])), "dtype": r["dtype"], "ranks / GPUs": f"{r['world']} / {r['gpus']}",
            "time": shown_time(r["time_us"]), "TFLOP/s": f"{r['tflops']:.0f}" if r.get("tflops") else EMPTY,
            "against": name, "its time": time,
            "ratio": f"{r['ratio']:.2f}" if r.get("ratio") else EMPTY,
            "rel. error": f"{r['rel_error']:.1e}" if r.get("rel_error") is not None else EMPTY,
            "more": more(r) or EMPTY, "card": r["card"], "commit": r["commit"]}


def grid(rows, columns):
    """Markdown of rows of cells."""
    lines = [columns, ["---"] * len(columns), *([row[name] for name in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |".replace(" --- ", "---") for line in lines)


def table(results, columns=COLUMNS):
    """What all results share, and their table without it, by operator, ranks and size; a sentence where there is none yet."""
    if not results:
        return "Nothing has been measured yet."
    rows = [cells(r) for r in sorted(results, key=lambda r: (r["op"], r["world"], prod(r["shape"]), r.get("baseline") or ""))]
    same = {name: rows[0][name] for name in columns if name in SHARED and len({row[name] for row in rows}) == 1}
    told = [text if name in ("dtype", "card") else f"{name} {text}" for name, text in same.items() if text != EMPTY]
    return f"All rows: {', '.join(told)}.\n\n{grid(rows, [c for c in columns if c not in same])}"


def section(title, results):
    """A heading, the table and the commands that made its rows."""
    commands = dict.fromkeys(f"`{micro_table.command(r)}`" for r in results)
    return f"### {title}\n\n{table(results)}\n\nMade by {', '.join(commands)}."


def sections(folder=RESULTS):
    """All results, a section for each kind of them; last what ``micro.py`` measured."""
    found = {}
    for r in newest(folder):
        if not r["op"].startswith("micro: "):
            found.setdefault(next(i for i, (_, takes) in enumerate(SECTIONS) if takes(r)), []).append(r)
    texts = [section(SECTIONS[i][0], found[i]) for i in sorted(found)]
    micro = micro_table.section(*sorted(folder.glob("*.jsonl")))
    return "\n\n".join([*texts, *([micro] if micro else [])]) or "Nothing has been measured yet."


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
        print(sections())
        return 0
    text = path.read_text()
    new = replaced(text, table(headlines(newest(RESULTS)), [c for c in COLUMNS if c != "more"]) if path.name == "README.md" else sections())
    if args.check:
        return 0 if new == text else 1
    path.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())

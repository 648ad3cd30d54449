"""Run every operator under NVIDIA's compute-sanitizer on one GPU, small shapes: one JSON line per operator, tool and number of ranks.

    python scripts/sanitize.py                                   # memcheck, racecheck, synccheck, initcheck, poison
    python scripts/sanitize.py --tools memcheck --only gemm --world 1 2

Ranks are threads of one process. `poison` is no tool of NVIDIA's: all device memory holds NaN until somebody writes it, the copy engine
too, and results must be right. First each tool is shown a kernel that is wrong on purpose, which it must find, and one that shows what it
cannot see (tests/gpu/controls.py). What is known to be no fault of a kernel is listed in sanitizer.py, by source line. Exit status: 0
nothing else was found, 1 something was, 2 it cannot be run. `docs/checking.md` says what these tools cannot see.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from launch import guarded, to_numpy
from operators import OPERATORS, Inputs
from sanitizer import Reader, explain, told

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck", "poison")
#: What is shown to a tool first: a kernel that it must find wrong, and one that shows its limit.
SHOWN = ("control", "limit")
#: M, N, K: a tail in every direction, several tiles of k; what attention takes for N is a head, which has up to 256 elements. Less for
#: initcheck, which takes long over each finding.
SHAPE, HEADS, SMALL = (136, 264, 200), (136, 64, 200), (24, 72, 136)
#: The most findings that a tool prints of a process: as many are as good as one that nobody has seen.
MOST = 20_000
#: What the inner process says before and after an operator; everything that a tool prints in between is about that operator.
BEGIN, END = "#begin", "#end"


def parse(argv=None):
    """Command line -> arguments."""
    p = argparse.ArgumentParser(prog="sanitize.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
    p.add_argument("--only", nargs="+", default=sorted(OPERATORS), choices=sorted(OPERATORS), metavar="OP")
    p.add_argument("--world", type=int, nargs="+", default=[1, 2], metavar="N")
    p.add_argument("--timeout", type=float, default=120, help="seconds for one process")
    p.add_argument("--jobs", type=int, default=4, help="processes at once")
    p.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "checks" / "sanitize.jsonl",
                   help="JSON lines are added to this file")
    p.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--show", nargs=2, help=argparse.SUPPRESS)
    p.add_argument("--under", choices=TOOLS, help=argparse.SUPPRESS)
    return p.parse_args(argv)


def inner(args):
    """The process that a tool watches: calls each operator twice, and says whether the result is right. It ends with status 0."""
    from pknumba import World
    if args.under == "poison":
        _poison()
    if args.show:
        return _show(*args.show)
    for name in args.only:
        for size in args.world:
            print(BEGIN, name, size, flush=True)
            try:
                with World.local(size, executor=os.environ.get("PKNUMBA_EXECUTOR", "gpu")) as world:
                    verdict = "right" if all(world.run(_one, OPERATORS[name], args.under)) else "wrong"
            except Exception as error:
                verdict = f"{type(error).__name__}: {error}".partition("\n")[0]
            print(END, name, size, verdict, flush=True)
    return 0


def _poison():
    """From now on device memory that nobody has written holds NaN."""
    from pknumba.runtime import driver
    fresh = driver.alloc

    def alloc(nbytes, about=None):
        pointer, stream = fresh(nbytes, about), driver.stream_create()      # of its own: another rank's kernel may wait for this rank
        driver.memset(pointer, 0xFF, nbytes, stream)
        driver.stream_synchronize(stream)
        driver.stream_destroy(stream)
        return pointer
    driver.alloc = alloc


def _show(what, tool):
    """The control of a tool, or what it cannot see."""
    from pknumba import World
    from pknumba.errors import PknumbaError
    from pknumba.runtime import DeviceArray
    sys.path.insert(0, str(ROOT))
    from tests.gpu import controls
    print(BEGIN, what, 1, flush=True)
    try:
        world = World.local(1, executor="gpu")
        if tool == "poison":
            verdict = "wrong" if np.isnan(DeviceArray.empty((64, 64)).get()).all() else "right"
        else:
            verdict = "right" if controls.play(world, getattr(controls, what.upper() + "S")[tool]) == 0 else "wrong"
    except PknumbaError as error:                                       # a tool may end the kernel, and the context with it
        verdict = f"{type(error).__name__}: {error}".partition("\n")[0]
    print(END, what, 1, verdict, flush=True)
    return 0


def shape_of(name, tool):
    """M, N, K of an operator."""
    return HEADS if name.endswith("attention") else SMALL if tool == "initcheck" else SHAPE


def _one(world, operator, tool):
    shape = shape_of(operator.name, tool)
    inputs = Inputs(operator, world.size, shape, "bfloat16")
    A, B = (world.asarray(x) for x in inputs(world.rank))
    out = world.symmetric(shape[:2], "bfloat16") if operator.symmetric else None
    if out is not None:
        _zero(out)
    result = operator.call(world, A, B, out, None, shape[0])
    world.synchronize()
    world.barrier()
    if out is None and isinstance(result, type(A)) and result is not A:
        out = world.asarray(np.zeros(result.shape, to_numpy(A).dtype))
    world.barrier()                                     # a tool may hold back what one rank does until the other's kernel has ended
    result = operator.call(world, A, B, out, None, shape[0])
    world.synchronize()
    rows = operator.share(world.rank, world.size, shape[0])
    value, bound = operator.expected(inputs, world.rank, rows, "bfloat16")
    return bool((np.abs(to_numpy(result).astype(np.float64) - value) <= bound).all())


def _zero(array):
    """Write zeros: initcheck does not see what the copy engine writes, and would report that the result is read."""
    from pknumba.runtime import DeviceArray
    if array.device != "cpu":
        DeviceArray(array.pointer, array.shape, array.dtype, array.device, array.strides).set(np.zeros(array.shape, np.float32))


def watch(tool, names, args):
    """Run the inner process on these operators under a tool (None: bare). {(operator, ranks): (verdict, findings, seconds)}."""
    # initcheck launches one kernel after the other, on all streams: ranks that wait for each other would never meet.
    worlds = [1] if tool == "initcheck" or names[0] in SHOWN else args.world
    command = [sys.executable, __file__, "--inner", "--world", *map(str, worlds)]
    command += ["--show", *names, tool] if names[0] in SHOWN else ["--only", *names]
    command += ["--under", tool] if tool else []
    if tool not in (None, "poison"):
        command = ["compute-sanitizer", "--tool", tool, "--destroy-on-device-error", "kernel", "--print-limit", str(MOST), *command]
    limits = {"PKNUMBA_WAIT_LIMIT_S": "5"} if names[0] in SHOWN else {}         # one of these waits for nobody
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=ROOT,
                               start_new_session=True, env={**os.environ, **limits})
    with process, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(_read, process.stdout)
        try:
            process.wait(args.timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)          # the tool, and the program that it watches
            process.wait()
        found, rest = reading.result()
    for name in names:
        for size in worlds:
            found.setdefault((name, size), (f"not run: the process ended with {process.returncode}; {' / '.join(rest[-3:])}", [], None))
    return found


def _read(lines):
    """({(operator, ranks): (verdict, findings, seconds)}, lines outside of any operator)."""
    found, rest, reader, start, key = {}, [], Reader(), 0.0, None
    for line in lines:
        words = line.split(maxsplit=3)
        if words[:1] == [BEGIN]:
            reader, start, key = Reader(), time.monotonic(), (words[1], int(words[2]))
        elif words[:1] == [END]:
            found[key] = words[3].strip(), reader.found, round(time.monotonic() - start, 2)
            reader, key = Reader(), None
        elif not reader.read(line) and key is None and line.strip():
            rest.append(line.strip())
    if key is not None:
        found[key] = "the process ended in it", reader.found, round(time.monotonic() - start, 2)
    return found, rest + told(reader.found)


def judge(tool, name, verdict, findings):
    """(whether it passed, findings that nobody has explained, reasons of the others)."""
    if name == "control":
        return bool(findings) or tool == "poison" and verdict == "wrong", findings, []
    if name == "limit":                                     # wrong and not seen, or right and reported: recorded, whatever it is
        return True, findings, []
    if len(findings) >= MOST:
        return False, findings, []
    why = [(finding, explain(tool, finding)) for finding in findings]
    open_ones = [finding for finding, reason in why if reason is None]
    return verdict == "right" and not open_ones, open_ones, sorted({reason for _, reason in why if reason})


def main():
    """Fill the cache of kernels, then run every tool. Returns the exit status."""
    args = parse()
    if args.inner:
        return inner(args)
    if not shutil.which("compute-sanitizer"):
        print("sanitize.py: no compute-sanitizer on PATH. It comes with the CUDA toolkit. Install that.", file=sys.stderr)
        return 2
    os.environ.update(PKNUMBA_WAIT_LIMIT_S="30", PKNUMBA_LINES="1")     # everything is slower; findings name source lines
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]      # ranks share one
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from protocol import surroundings
    runs = [(tool, [what]) for what in SHOWN for tool in args.tools if (what, tool) != ("limit", "poison")]
    runs += [(tool, names) for tool in args.tools if tool != "initcheck" for names in (args.only[i::4] for i in range(4)) if names]
    # each alone: memory that is used again has been written once
    runs += [("initcheck", [name]) for name in args.only if "initcheck" in args.tools]
    around, clean = surroundings(), True
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(args.jobs) as pool, args.out.open("a") as file:
        list(pool.map(lambda name: watch(None, [name], args), args.only))
        for (tool, _), found in zip(runs, pool.map(lambda run: watch(*run, args), runs)):
            for (name, size), (verdict, findings, seconds) in found.items():
                passed, open_ones, reasons = judge(tool, name, verdict, findings)
                clean &= passed
                line = dict(op=name, passed=passed, tool=tool, shape=shape_of(name, tool), dtype="bfloat16", world=size, gpus=1,
                            result=verdict, findings=len(findings), unexplained=len(open_ones), said=told(open_ones or findings),
                            explained=reasons, seconds=seconds, **around)
                file.write(json.dumps(line) + "\n")
                file.flush()
                print(f"{tool:<10} {name:<20} {size} {seconds} s {'PASS' if passed else 'FAIL'} {verdict[:200]} "
                      f"{len(findings)} findings {told(open_ones, 2)}", flush=True)
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(guarded("sanitize.py", main))

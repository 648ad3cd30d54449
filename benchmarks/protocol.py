"""One way to measure on a GPU, for every benchmark here.

1. The result is checked before anything is timed; a wrong variant is not timed.
2. Inputs are random normal numbers: products of zeros run faster.
3. Buffers rotate over several sets, more bytes in all than the L2 cache holds, as far as they fit in memory.
4. Variants are interleaved in one run, in rotating order, so that clocks and temperature are the same for all.
5. Calls shorter than 250 us are batched in CUDA graphs, for every variant alike, so that no host time is measured.
6. CUDA events; median, 10th and 90th percentile over at least 30 rounds; with several ranks the maximum over them, and 20 rounds at
   most, fewer of calls that take long.
7. Every number is a JSON line with what is needed to repeat it, and with what the card reaches in the same run (``roofs``).
8. Energy of a call, where the card counts it (``millijoules``).
"""

import argparse
import ctypes
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from functools import partial
from itertools import cycle
from pathlib import Path

try:
    import torch
except ImportError as error:
    raise SystemExit("benchmarks: torch is not installed. Everything is timed beside it on a GPU. Install torch with CUDA.") from error

from pknumba.runtime.arrays import describe

ROOT = Path(__file__).resolve().parent.parent
#: Bytes that rotating buffers take in all, many times the 60 MB L2 of an H200; long calls flush it themselves in part.
ROTATE, ROTATE_LONG = 1_000_000_000, 300_000_000
#: Expected seconds of a call under which calls are batched in graphs.
SHORT = 250e-6


def options(description, out):
    """Parser with the flags that every benchmark has: --only, --budget, --rounds, --out."""
    p = argparse.ArgumentParser(description=description)
    p.add_argument("--only", default="", help="run only cases whose name contains this text")
    p.add_argument("--budget", type=float, default=240, help="start no case after so many seconds")
    p.add_argument("--energy", action="store_true", help="measure the energy of a call too: products, attention, experts on one GPU")
    p.add_argument("--rounds", type=int, default=60, help="timed rounds of a case at most (30 at least)")
    p.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / out, help="JSON lines are added to this file")
    return p


class Budget:
    """Seconds left to start cases in."""

    def __init__(self, seconds):
        self.end = time.perf_counter() + seconds

    def left(self):
        """Seconds."""
        return max(0.0, self.end - time.perf_counter())

    def spent(self, name):
        """Whether the time is up; says which case is left out."""
        over = time.perf_counter() > self.end
        if over:
            print(f"left out for lack of time: {name}", flush=True)
        return over


def rotation(nbytes, est):
    """How many buffer sets of so many bytes to rotate over, for calls of that many expected seconds: 1 to 8."""
    return max(1, min(8, -(-(ROTATE_LONG if est > SHORT else ROTATE) // max(nbytes, 1))))


def batch_of(est):
    """Calls of that many expected seconds to put in one graph: enough for 400 us, 1 for long calls."""
    return 1 if est > SHORT else max(2, min(20, round(4e-4 / est)))


def graph_of(calls):
    """One replayable CUDA graph of the calls (functions that launch on torch's current stream). They have been called before."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph.replay


def interleaved(variants, est, rounds=60):
    """Time variants against each other.

    Args:
        variants: {name: [call per buffer set]}; a call takes no argument and launches on torch's current stream.
        est: expected seconds of one call.
        rounds: timed rounds, 30 at least.
    Returns: ({name: [microseconds per call, one number a round]}, "graph" or "eager").
    """
    batch, runs = batch_of(est), {}
    for name, calls in variants.items():
        sequence = [calls[i % len(calls)] for i in range(batch)]
        for call in sequence:
            call()
        torch.cuda.synchronize()
        runs[name] = graph_of(sequence) if batch > 1 else partial(_next, cycle(calls))
    _warm(runs.values())
    names, events = list(runs), {name: [] for name in runs}
    for r in range(max(30, rounds)):
        for name in names[r % len(names):] + names[:r % len(names)]:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            runs[name]()
            end.record()
            events[name].append((start, end))
        if r % 8 == 7:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return {n: [a.elapsed_time(b) * 1e3 / batch for a, b in pairs] for n, pairs in events.items()}, "graph" if batch > 1 else "eager"


def _next(calls):
    next(calls)()


def _warm(runs, seconds=0.15):
    """Run for a while, so that clocks have risen when timing starts."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for run in runs:
            run()
        torch.cuda.synchronize()


def summary(times):
    """(median, 10th percentile, 90th percentile), rounded to nanoseconds."""
    ordered = sorted(times)
    return tuple(round(ordered[min(len(ordered) - 1, int(q * len(ordered)))], 3) for q in (0.5, 0.1, 0.9))


def relative_error(result, A, B, rows=2048):
    """Relative error of A @ B against float64, over evenly spaced rows where there are more than ``rows``."""
    chosen = torch.linspace(0, A.shape[0] - 1, min(rows, A.shape[0]), device=A.device).long()
    expected = A[chosen].double() @ B.double()
    return ((result[chosen].double() - expected).norm() / expected.norm()).item()


def as_torch(array):
    """A torch tensor on the memory of any array of pknumba's (CuPy, DeviceArray, ...); bfloat16 goes as its bits."""
    info = describe(array)
    bits = dict(shape=info.shape, typestr="<i2", data=(info.pointer, False), strides=info.strides, version=3)
    face = type("Bits", (), {"__cuda_array_interface__": bits, "owner": array})()
    return torch.as_tensor(face, device="cuda").view(getattr(torch, info.dtype))


def measured_roofs(rounds=30):
    """{name: (value, unit, microseconds of each round, shape)}: "copy" (bytes read plus written), "gemm" (cuBLAS, large), and "peer copy"
    where there is a second GPU that this one reaches."""
    x, y = (torch.randn(1 << 27, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    A, B, C = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    variants = {"copy": [lambda: y.copy_(x)], "gemm": [lambda: torch.matmul(A, B, out=C)]}
    here, other = torch.cuda.current_device(), (torch.cuda.current_device() + 1) % torch.cuda.device_count()
    if other != here and torch.cuda.can_device_access_peer(here, other):
        far = torch.empty(1 << 27, device=f"cuda:{other}", dtype=torch.bfloat16)
        variants["peer copy"] = [lambda: far.copy_(x)]
    times = interleaved(variants, 1e-3, rounds)[0]
    work = {"copy": (2 * x.nbytes / 1e9, "gbytes_per_s", [x.numel()]), "peer copy": (x.nbytes / 1e9, "gbytes_per_s", [x.numel()]),
            "gemm": (2 * 8192**3 / 1e12, "tflops", [8192] * 3)}
    return {n: (work[n][0] / (summary(t)[0] * 1e-6), work[n][1], t, work[n][2]) for n, t in times.items()}


_roofs = {}


def roofs():
    """{"roof_copy": GB/s, "roof_gemm": TFLOP/s, ...}, measured when first asked for; part of every line that is written afterwards."""
    if not _roofs:
        _roofs.update({f"roof_{n.replace(' ', '_')}": round(value, 1) for n, (value, *_) in measured_roofs().items()})
        torch.cuda.empty_cache()
    return _roofs


def _counter():
    """Function () -> millijoules that this card has used so far; None where NVML is missing or the card does not count."""
    try:
        nvml, handle, used = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), ctypes.c_ulonglong()
    except OSError:
        return None
    uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}".encode()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle)):
        return None

    def read():
        return used.value if nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(used)) == 0 else None
    return read if read() is not None else None


def millijoules(variants, est, seconds=0.4):
    """{name: millijoules of a call}, each variant run for that long on its own; None for each where the card does not count.

    Args:
        variants, est: as of ``interleaved``.
    """
    read, found = _counter(), {}
    for name, calls in variants.items():
        count, start = max(20, round(seconds / est)), read and read()
        for call, _ in zip(cycle(calls), range(count)):
            call()
        torch.cuda.synchronize()
        found[name] = round((read() - start) / count, 4) if read else None
    return found


def energy(args, variants, est, ours, baseline=None):
    """Fields of a result: millijoules of our variant and of the baseline, where the flags ask for them."""
    if not args.energy:
        return {}
    found = millijoules({name: variants[name] for name in (ours, baseline) if name}, est)
    return {"millijoules": found[ours]} | ({"baseline_millijoules": found[baseline]} if baseline else {})


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(*command):
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def commit():
    """The commit measured: PKNUMBA_COMMIT where that is set (a copy without git), else that of the checkout, with "+" if files differ."""
    told = os.environ.get("PKNUMBA_COMMIT")
    name = told or _output("git", "rev-parse", "--short=12", "HEAD")
    changed = not told and name and _output("git", "status", "--porcelain", "--untracked-files=no", "--", "pknumba")
    return (name or "unknown") + ("+" if changed else "")


def _command():
    """The command that runs, without where its results go: that is of this machine."""
    words = ["python", os.path.relpath(sys.argv[0], ROOT), *sys.argv[1:]]
    at = words.index("--out") if "--out" in words else len(words)
    return " ".join(words[:at] + words[at + 2:])


def surroundings():
    """What a number depends on beside the code: card, clocks, driver, versions, commit, command."""
    asked = _output("nvidia-smi", "--query-gpu=driver_version,clocks.sm,power.draw", "--format=csv,noheader,nounits",
                    f"--id={torch.cuda.current_device()}")
    driver, clock, watts = asked.split(", ") if asked and asked.count(", ") == 2 else (None, None, None)
    packages = ("numba-cuda", "numba", "cuda-bindings", "cuda-core", "numpy", "cupy-cuda13x", "mpi4py", "nvidia-nvjitlink")
    return dict(card=torch.cuda.get_device_name(), driver=driver, sm_clock_mhz=clock, power_w=watts, commit=commit(),
                versions={"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
                | {name: v for name in packages if (v := _version(name))},
                command=_command(),
                when=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


def write(path, op, shape, dtype, times, baseline=None, baseline_times=None, rel_error=None, *, world=1, gpus=1, config=None,
          **more):
    """Add one JSON line and print it short. Times are lists of microseconds; ratio = baseline's median / ours (above 1: faster)."""
    time_us, p10, p90 = summary(times)
    line = dict(op=op, shape=list(shape), dtype=dtype, world=world, gpus=gpus, executor="gpu", baseline=baseline, ratio=None,
                time_us=time_us, p10_us=p10, p90_us=p90, rounds=len(times), rel_error=rel_error, config=config)
    if baseline_times:
        line["baseline_us"], line["baseline_p10_us"], line["baseline_p90_us"] = summary(baseline_times)
        line["ratio"] = round(line["baseline_us"] / time_us, 4)
    line |= more | _roofs | surroundings()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    said = {k: line.get(k) for k in ("tflops", "ratio", "time_us", "baseline_us", "rel_error") if line.get(k) is not None}
    print(op, "x".join(map(str, shape)), dtype, f"world {world}", *(f"{k} {v:.4g}" for k, v in said.items()), flush=True)
    return line

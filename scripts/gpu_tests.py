"""Run everything that needs a GPU, each file of tests in a process of its own with a limit: what hangs costs its own time only.

    python scripts/gpu_tests.py                                  # all tests of the gpu tier, on every card, then many calls under MPS
    python scripts/gpu_tests.py --only attention slices --calls 0
    python scripts/gpu_tests.py --seconds 500 --out report       # a log of each, and jobs.jsonl

Files share the cards, --at-once of them each. Then, each alone on a card, tests of ranks that share it under MPS, and programs that make
many calls in a row (tests/gpu/many_*.py) with 2, 4 and 8 such ranks; then, where there are several cards, the tests that need them. A
line tells how each ended. Exit status: 0 all passed; 1 something failed, was stopped at its limit, or was not started in time; 2 there
is no GPU.
"""

import argparse
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Name of the variable by which the processes of a job are found again, whatever session they have moved to.
MARK = "PKNUMBA_GPU_TESTS"
PROGRAMS, RANKS = ("many_calls", "many_fused", "many_collectives", "many_layers", "many_attention"), (2, 4, 8)
#: What the names of tests that start the service have in them: it takes memory and SMs that others would be short of.
SERVED = "under_mps"
#: Seconds that a job must have to be started, and that a process has to end when it is asked to.
LEAST, GRACE = 15, 5


@dataclass(frozen=True)
class Job:
    """A process to run. ``cards``: "shared" with others, one "alone", or "all" of them."""

    name: str
    command: tuple
    cards: str = "shared"


@dataclass
class Ended:
    """How a job ended: "passed", "failed", "stopped" at its limit, "not started", or "nothing" to run; ``said``: its last line."""

    name: str
    how: str
    seconds: float = 0.0
    said: str = ""


def jobs(folder, only, calls, cards):
    """The jobs whose names contain one of the words ``only``, or all."""
    def tests(name, marks, *where, **more):
        return Job(name, (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks, *map(str, where)), **more)
    texts, mine = {file: file.read_text() for file in sorted(folder.glob("test_*.py"))}, "gpu and not multigpu"
    names = {file: file.stem.removeprefix("test_").removesuffix("_gpu") for file in texts}
    served = [file for file, text in texts.items() if re.search(rf"^def test_\w*{SERVED}", text, re.MULTILINE)]
    found = [tests(names[file], mine, file, *(("-k", f"not {SERVED}") if file in served else ())) for file in texts]
    found += [tests(f"{names[file]} under MPS", mine, file, "-k", SERVED, cards="alone") for file in served]
    for program in PROGRAMS if calls else ():
        for ranks in RANKS:
            run = str(ROOT / "scripts" / "mps"), "run", "-n", str(ranks), "--"
            found.append(Job(f"{program} {ranks}", (*run, sys.executable, str(folder / f"{program}.py"), "--calls", str(calls)), "alone"))
    if cards > 1:
        found += [tests(f"several cards {test.removeprefix('test_')}", "multigpu", f"{file}::{test}", cards="all")
                  for file, text in texts.items() if "multigpu" in text
                  for test in re.findall(r"^def (test_\w+)", text, re.MULTILINE)]
    return [job for job in found if not only or any(word in job.name for word in only)]


def sweep(mark):
    """Kill what a job has left behind."""
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}\0".encode() in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGKILL)
        except OSError:             # it has ended, or is another user's
            pass


def play(job, visible, limit, out):
    """Run a job on the cards ``visible`` for at most ``limit`` seconds."""
    mark, log, start = f"{os.getpid()}-{job.name.replace(' ', '-')}", out / f"{job.name.replace(' ', '-')}.log", time.monotonic()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": visible, MARK: mark, "PATH": path, "PKNUMBA_MPS_DIR": str(out / f"mps-{mark}")}
    with open(log, "wb") as file:
        process = subprocess.Popen(job.command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                   start_new_session=True)
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
            os.killpg(process.pid, signal.SIGTERM)              # scripts/mps stops the service on its way out
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
    sweep(mark)                                                 # itself among them, if it is still there
    process.wait()
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    known = {None: "stopped", 0: "passed", **({5: "nothing"} if "pytest" in job.command else {})}
    how = known.get(status, "failed")
    return Ended(job.name, how, round(time.monotonic() - start, 1), re.sub(r"^=+ | =+$", "", lines[-1])[:120] if lines else "")


def stage(todo, places, args, deadline, done):
    """Run jobs at these places, each a CUDA_VISIBLE_DEVICES, one at a time at each."""
    waiting = queue.SimpleQueue()
    for job in todo:
        waiting.put(job)

    def work(visible):
        while True:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            left = deadline - time.monotonic()
            done(play(job, visible, min(args.limit, left), args.out) if left > LEAST else Ended(job.name, "not started"))
    threads = [threading.Thread(target=work, args=(place,)) for place in places[:len(todo)]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run(todo, cards, args):
    """Every job, in stages. Returns what became of each, in the order in which they ended."""
    deadline, ended, lock = time.monotonic() + args.seconds, [], threading.Lock()

    def done(job):
        with lock:
            ended.append(job)
            print(f"[{len(ended):3d}/{len(todo)}] {job.how:11s} {job.seconds:6.1f} s  {job.name:24s} {job.said}", flush=True)
            with open(args.out / "jobs.jsonl", "a") as file:
                file.write(json.dumps(asdict(job)) + "\n")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(cards)))
    each = visible.split(",")[:cards]
    for kind, places in (("shared", each * args.at_once), ("alone", each), ("all", [",".join(each)])):
        stage([job for job in todo if job.cards == kind], places, args, deadline, done)
    return ended


def main(argv=None):
    """Run the jobs that the flags name. Returns the exit status."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", nargs="+", metavar="WORD", help="jobs whose names contain one of these words")
    p.add_argument("--calls", type=int, default=100, help="calls of each program of many calls; 0: leave them out (default 100)")
    p.add_argument("--at-once", type=int, default=6, help="files of tests that share a card (default 6)")
    p.add_argument("--limit", type=float, default=600, help="seconds that a job may take (default 600)")
    p.add_argument("--seconds", type=float, default=3600, help="seconds for all of them; what does not fit is not started (default 3600)")
    p.add_argument("--cards", type=int, help="how many to use (default: all that CUDA_VISIBLE_DEVICES leaves)")
    p.add_argument("--out", type=Path, default=Path("gpu-tests"), help="folder of the logs (default gpu-tests)")
    p.add_argument("--folder", type=Path, default=ROOT / "tests" / "gpu", help=argparse.SUPPRESS)
    args = p.parse_args(argv)
    cards = args.cards
    if cards is None:
        from pknumba.errors import PknumbaError
        from pknumba.runtime import driver
        try:
            cards = driver.device_count()
        except PknumbaError as error:
            print(error, file=sys.stderr)
            cards = 0
    if cards < 1:
        print("gpu_tests: no GPU was found. These tests need one. `./scripts/test` runs those that do not.", file=sys.stderr)
        return 2
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    ended = run(jobs(args.folder, args.only, args.calls, cards), cards, args)
    count = {how: sum(job.how == how for job in ended) for how in ("passed", "failed", "stopped", "not started")}
    print(", ".join(f"{n} {how}" for how, n in count.items() if n) + f"; logs in {args.out}")
    return int(not count["passed"] or any(job.how not in ("passed", "nothing") for job in ended))


if __name__ == "__main__":
    sys.exit(main())

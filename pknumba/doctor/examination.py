"""The examination: facts of this process, and what follows from them."""

import json
import os
import platform
import subprocess
import sys
from collections import Counter

from . import installed
from .operators import reach, ways
from .report import Finding, Report
from .. import __version__
from ..errors import PknumbaError
from ..runtime import driver, survey

#: The one compute capability that kernels are compiled for.
CAPABILITY = [9, 0]


def examine(executor="auto", ranks=None):
    """Look at this machine; under mpirun collective, with the same report on every rank.

    Args:
        executor: "gpu" makes it a problem that there is none; "interpreter" looks at no GPU; "auto" takes what is there.
        ranks: whether to ask the other MPI ranks; None: if a launcher started several.

    Returns: Report.
    """
    if ranks is None:                           # torchrun's processes have no MPI: each looks for itself
        ranks = survey.launcher()[1] > 1 and "TORCHELASTIC_RUN_ID" not in os.environ
    if not ranks:
        facts = gathered(executor, None)
        return Report(facts, sorted(findings(facts, executor, 1), key=lambda f: f.level))
    everyone = survey.gather(lambda node: gathered(executor, node))
    found = {}
    for rank, (host, _, facts) in enumerate(everyone):
        here = sum(h == host for h, *_ in everyone)
        for finding in findings(facts, executor, here):
            found.setdefault(finding, []).append(rank)
    merged = [f if len(by) == len(everyone) else f._replace(subject=f"ranks {', '.join(map(str, by))}, {f.subject}")
              for f, by in found.items()]
    return Report(everyone[0][2], sorted(merged + compared(everyone), key=lambda f: f.level), everyone)


def gathered(executor, node):
    """The facts of this process. node: communicator of the ranks on this node, or None."""
    facts = {"pknumba": __version__, "python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}",
             "packages": installed.packages(), "cache": installed.cached(), "mps": survey.mps()}
    number = node.rank if node else 0
    facts["gpu"] = {"error": "not looked at: executor interpreter"} if executor == "interpreter" else _gpu(number, node)
    facts["mpi"] = _mpi(node)
    facts["executor"] = "interpreter" if "error" in facts["gpu"] or os.environ.get("PKNUMBA_EXECUTOR") == "interpreter" else "gpu"
    count = 0 if "error" in facts["gpu"] else len(facts["gpu"]["devices"])
    facts["place"] = {"device": number % count if count else None, "visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
                      "pid": os.getpid()}
    facts["reach"], facts["operators"] = reach(facts), ways(facts)
    return facts


def _gpu(number, node):
    try:
        found = survey.devices()
        if not found:
            return {"error": driver.available()[1]}
        version, newest = survey.driver_version()
        tried = "2 MiB of each rank, read by its neighbour" if node and node.size > 1 else "2 MiB exported"
        return {"driver": version, "cuda": newest, "devices": found, "peers": survey.peers(len(found)),
                "links": survey.links([d["pci"] for d in found]) if len(found) > 1 else None,
                "ipc": survey.ipc(number % len(found), node), "ipc_tried": tried}
    except PknumbaError as error:
        return {"error": str(error)}


def _mpi(node):
    """Facts of MPI; alone they are asked in a process of their own, because an MPI that cannot start may end the one it is in."""
    if node:
        return survey.mpi_facts()
    code = "import json; from pknumba.runtime import survey; print(json.dumps(survey.mpi_facts()))"
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        return json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": "MPI: it did not start within 60 s. World.mpi cannot be used. Look at your MPI's own test programs."}
    except (IndexError, ValueError):
        said = [line for line in done.stderr.splitlines() if line.strip()]
        return {"error": said[-1].removeprefix("pknumba.errors.UnsupportedError: ") if said else "MPI: it ended without a word."}


def findings(facts, executor, ranks):
    """The Findings in one process's facts. ranks: how many are on its node."""
    found = [Finding("bad", "versions", text) for text in installed.clashes(facts["packages"])]
    missing = [name for name in ("numpy", "ml_dtypes") if not facts["packages"][name]]
    found += [Finding("bad", name, "it is not installed. pknumba does not start without it. Install it.") for name in missing]
    if not facts["packages"]["numba-cuda"]:
        found.append(Finding("note", "numba-cuda", "it is not installed. Kernels run only if they were compiled ahead of time. Install "
                             "it, or set PKNUMBA_BUNDLE."))
    if not facts["packages"]["greenlet"]:
        found.append(Finding("note", "greenlet", "it is not installed. The interpreter needs it. pip install greenlet."))
    cache = facts["cache"]
    if not cache["usable"]:
        found.append(Finding("note", "cache", f"{cache['folder'] or 'no folder'} cannot be written. Every process compiles its kernels "
                             "anew. Set PKNUMBA_CACHE_DIR to a folder of yours."))
    if "error" in facts["mpi"]:
        found.append(Finding("note", "MPI", facts["mpi"]["error"].removeprefix("MPI: ")))
    if "error" in facts["gpu"]:
        level = "bad" if executor == "gpu" else "note"
        return [*found, Finding(level, "GPU", facts["gpu"]["error"])] if executor != "interpreter" else found
    return found + _of_gpus(facts, ranks)


def _of_gpus(facts, ranks):
    gpu, found = facts["gpu"], []
    for d in gpu["devices"]:
        name = f"device {d['index']}"
        if d["capability"] != CAPABILITY:
            found.append(Finding("bad", name, f"{d['name']} has compute capability {d['capability'][0]}.{d['capability'][1]}. Kernels are "
                                 "for 9.0 (H100, H200). Hide it by CUDA_VISIBLE_DEVICES, or set PKNUMBA_EXECUTOR=interpreter."))
        if d["compute_mode"] == "prohibited" or d["compute_mode"] == "exclusive process" and ranks > len(gpu["devices"]) and not d["mps"]:
            found.append(Finding("bad", name, f"compute mode {d['compute_mode']}. Several ranks cannot work on it. Use nvidia-smi -c "
                                 "DEFAULT, or MPS by scripts/mps."))
    if int(gpu["cuda"].partition(".")[0]) < 13 and facts["packages"]["nvidia-nvjitlink"]:
        found.append(Finding("bad", "driver", f"it runs CUDA {gpu['cuda']}. Kernels linked by nvJitLink 13 need a driver for CUDA 13 (580 "
                             "or newer). Update it."))
    if gpu["ipc"]:
        found.append(Finding("bad", "ipc", gpu["ipc"]))
    cut = [(a, b) for a, row in enumerate(gpu["peers"]) for b, kind in enumerate(row) if kind == "no"]
    if cut:
        found.append(Finding("bad", "peers", f"device {cut[0][0]} cannot reach device {cut[0][1]} ({len(cut)} pairs in all). Ranks read "
                             "and write each other's memory. Use devices of one NVLink or PCIe group."))
    slow = [(a, b) for a, row in enumerate(gpu["peers"]) for b, kind in enumerate(row) if kind == "access"]
    if slow:
        found.append(Finding("bad", "peers", f"device {slow[0][0]} cannot add atomically in memory of device {slow[0][1]}. Signals between "
                             "ranks are atomic additions. Use devices that NVLink connects."))
    if ranks > len(gpu["devices"]) and not gpu["devices"][0]["mps"]:
        found.append(Finding("note", "MPS", f"{ranks} ranks share {len(gpu['devices'])} GPU(s) without it. They take turns, milliseconds "
                             "each. Start them by scripts/mps run."))
    if any(d["multicast"] for d in gpu["devices"]):
        found.append(Finding("note", "multicast", "the device has it, pknumba's worlds do not use it yet. Sums read every peer instead. "
                             "Nothing to do."))
    return found


def compared(everyone):
    """Findings about ranks that differ in what must be the same."""
    found = []
    for subject, of in (("pknumba", lambda f: f["pknumba"]), ("Python", lambda f: f["python"]), ("executor", lambda f: f["executor"]),
                        ("numba-cuda", lambda f: f["packages"]["numba-cuda"]), ("numpy", lambda f: f["packages"]["numpy"])):
        said = Counter(str(of(facts)) for *_, facts in everyone)
        if len(said) > 1:
            text = ", ".join(f"{what} on {n}" for what, n in said.items())
            found.append(Finding("bad", subject, f"ranks differ: {text} of them. All ranks of a world run the same. Make them equal."))
    return found

"""A doctor's report: facts, findings, and how both are told."""

from collections import namedtuple
from dataclasses import dataclass, field

from ..screen import paint, table

#: ``level``: "bad" (something that is wanted here does not work) or "note"; ``subject``: what it is about; ``text``: fact, rule, remedy.
Finding = namedtuple("Finding", "level subject text")


@dataclass
class Report:
    """What the doctor found.

    Attributes:
        facts: dict of what is there, plain values only (see ``--json``).
        findings: Findings, bad ones first.
        ranks: under MPI [(host, number on the node, facts)] of every rank, else [].
    """

    facts: dict
    findings: list = field(default_factory=list)
    ranks: list = field(default_factory=list)

    def __bool__(self):
        return not any(f.level == "bad" for f in self.findings)

    def data(self):
        """The report as plain values, for ``json.dumps``."""
        ranks = [{"rank": r, "host": host, "on_node": local, **_brief(facts)} for r, (host, local, facts) in enumerate(self.ranks)]
        return {**self.facts, "ranks": ranks, "findings": [f._asdict() for f in self.findings], "ok": bool(self)}

    def text(self, colour=False):
        """The report for people."""
        f, lines = self.facts, []

        def head(title):
            lines.append(paint(title, "head", colour))
        head(f"pknumba {f['pknumba']} on {f['system']}, Python {f['python']}")
        lines += table([(name, said or "not installed by pip") for name, said in f["packages"].items()])
        self._gpus(head, lines)
        head("between ranks")
        lines += table(self._between())
        head("kernels")
        cache = f["cache"]
        lines += table([("cache", f"{cache['folder'] or 'none'}: {cache['kernels']} kernels, {cache['bytes'] / 1e6:.1f} MB"
                         f"{'' if cache['usable'] else ', cannot be written'}"), ("executor", f["executor"])])
        head("what each operator would do here")
        lines += table([("operator", "on one rank", "on several", ""),
                        *((w["operator"], w["alone"], w["together"], w["instead"]) for w in f["operators"])])
        if self.ranks:
            head(f"{len(self.ranks)} ranks")
            lines += table(self._ranks())
        lines += self._verdict(colour)
        return "\n".join(lines)

    def _gpus(self, head, lines):
        gpu = self.facts["gpu"]
        if "error" in gpu:
            head("GPUs: none")
            lines.append("  " + gpu["error"])
            return
        head(f"GPUs: driver {gpu['driver'] or 'of unknown version'}, CUDA {gpu['cuda']}")
        lines += table([(f"device {d['index']}", d["name"], f"sm_{d['capability'][0]}{d['capability'][1]}", f"{d['sms']} SMs",
                         f"{d['memory_bytes'] / 2**30:.0f} GiB", d["compute_mode"], d["pci"]) for d in gpu["devices"]])
        first = gpu["devices"][0]
        yes = {True: "yes", False: "no"}
        lines += table([("memory by VMM", f"{yes[first['vmm']]}, as a file descriptor {yes[first['vmm_posix_fd']]}, over the fabric "
                         f"{yes[first['vmm_fabric']]}"),
                        ("multicast", f"{yes[first['multicast']]} (asked of the device; pknumba creates none)"),
                        ("ipc", gpu["ipc"] or f"works ({gpu['ipc_tried']})")])
        if len(gpu["devices"]) > 1:
            numbers = range(len(gpu["devices"]))
            links = gpu["links"] or [["?"] * len(numbers)] * len(numbers)
            lines += table([("from / to", *numbers),
                            *((a, *("-" if a == b else f"{gpu['peers'][a][b]} {links[a][b]}" for b in numbers)) for a in numbers)])

    def _between(self):
        mps, mpi = self.facts["mps"], self.facts["mpi"]
        service = "running in " + mps["pipe"] if mps["running"] else "not running" if mps["control"] else "not installed"
        rows = [("peers' memory", self.facts["reach"]), ("MPS", service + (f", {mps['share']} % of the SMs" if mps["share"] else ""))]
        if "error" in mpi:
            return [*rows, ("MPI", mpi["error"].removeprefix("MPI: "))]
        rows += [("MPI", f"{mpi['library']}, mpi4py {mpi['mpi4py']}"), ("mpirun", mpi["mpirun"] or "not on PATH")]
        rows += [(f"between nodes: {name}", ("yes, " if usable else "no, ") + why) for name, usable, why in mpi["engines"]]
        gpu = self.facts["gpu"]
        if not self.ranks and "error" not in gpu:
            rows.append(("mpirun -n N", f"rank r of a node works on device r modulo {len(gpu['devices'])}"))
        return rows

    def _ranks(self):
        rows = [("rank", "host", "device", "SMs", "visible devices", "executor", "process")]
        for rank, (host, _, facts) in enumerate(self.ranks):
            b = _brief(facts)
            rows.append((rank, host, b["device"], b["sms"], b["visible"], b["executor"], b["pid"]))
        return rows

    def _verdict(self, colour):
        lines = [f"{paint(f.level, f.level, colour)}  {f.subject}: {f.text}" for f in self.findings]
        bad = sum(f.level == "bad" for f in self.findings)
        good = f"ready: pknumba runs here on the {'GPU' if self.facts['executor'] == 'gpu' else 'interpreter'}"
        return [*lines, paint(f"{bad} {'problem' if bad == 1 else 'problems'}", "bad", colour) if bad else paint(good, "good", colour)]


def _brief(facts):
    """What the table of ranks shows of one."""
    place, gpu = facts["place"], facts["gpu"]
    device = place["device"]
    return {"device": "none" if device is None else f"{device} {gpu['devices'][device]['pci'] or gpu['devices'][device]['uuid'][:8]}",
            "sms": "-" if device is None else gpu["devices"][device]["sms"], "visible": place["visible"] or "all",
            "executor": facts["executor"], "pid": place["pid"]}

"""What each operator would do on a machine: on which executor, how ranks reach each other, what it does without."""

from .. import kernels


def operators():
    """{public function: kernel class} of all operators."""
    classes = {name.lower(): getattr(kernels, name) for name in kernels.__all__ if name[0].isupper()}
    return {name: classes[name.replace("_", "")] for name in kernels.__all__ if name.replace("_", "") in classes and name[0].islower()}


def ways(facts):
    """[dict(operator, alone, together, instead)] for a machine.

    alone: the kernel of a world of one rank. together: that of several, or that each works by itself. instead: what replaces a mechanism
    that the hardware may have and pknumba does not use here, or "".
    """
    rows = []
    for name, kernel in operators().items():
        speaks = _communicates(kernel)
        alone = getattr(kernel, "alone", None)
        rows.append({"operator": name, "executor": facts["executor"], "alone": alone.__name__ if alone else kernel.__name__,
                     "together": kernel.__name__ if speaks else "every rank by itself",
                     "instead": "sums by reading peers, not by the switch" if speaks and "reduce" in name else ""})
    return rows


def _communicates(kernel):
    """Whether its ranks have memory in common, or its products are spread over ranks."""
    if getattr(kernel, "symmetric", ()):
        return True
    try:
        return kernel.communicates()
    except (AttributeError, NotImplementedError):
        return False


def reach(facts):
    """How the ranks of a world reach each other's memory, in a few words."""
    if facts["executor"] == "interpreter":
        return "NumPy arrays; memory that the processes share"
    gpu = facts["gpu"]
    if gpu["ipc"]:
        return "threads only: this process cannot show its memory to others (see ipc)"
    devices = gpu["devices"]
    if len(devices) == 1:
        parted = devices[0]["mps"]
        return f"CUDA IPC on one GPU, {'side by side under MPS' if parted else 'ranks take turns without MPS'}"
    pairs = [(gpu["peers"][a][b], a, b) for a in range(len(devices)) for b in range(len(devices)) if a != b]
    cut = [(a, b) for kind, a, b in pairs if kind == "no"]
    if cut:
        return f"not all: device {cut[0][0]} cannot reach device {cut[0][1]}"
    link = {gpu["links"][a][b] for _, a, b in pairs} if gpu["links"] else set()
    return f"CUDA IPC over {', '.join(sorted(link)) or 'peer access'}"

"""What benchmarks over several GPUs would try can be launched: looked at without torch or a GPU, in a process of its own."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
PROGRAM = """
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock
for name in ("torch", "torch.distributed", "torch.distributed._symmetric_memory", "torch.nn", "torch.nn.functional", "torch.nn.attention"):
    sys.modules[name] = MagicMock()
import against_nccl
import multigpu
from fused import FUSED
from pknumba import kernels

parser = multigpu.protocol.options("", "multigpu.jsonl")
against_nccl.flags(parser)
for flags in ([], ["--tiles"]):
    args = parser.parse_args(flags)
    for part in ("fused", "large", "symmetric"):
        for name, fields in multigpu.KERNELS[part](args):
            kernel = getattr(kernels, name)
            cfg = kernel.config(**fields)
            cfg.check()
            kernel.for_config(cfg)
    for op, kind in FUSED.items():
        for shape in multigpu.LARGE + multigpu.FIRST:
            tried = against_nccl.configurations(SimpleNamespace(num_sms=132), kind.__new__(kind), shape, args.comm_sms,
                                                against_nccl.tiles_of(args))
            communicate = sum(name.endswith("comm SMs") for name in tried)
            assert tried.pop("chosen") is None and communicate == (0 if op == "gemm_all_to_all" else len(args.comm_sms))
            for cfg in tried.values():
                cfg.check()
print("all can be launched")
"""


def test_what_is_tried():
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=FOLDER, capture_output=True, text=True, timeout=100)
    assert done.stdout == "all can be launched\n", done.stderr[-2000:]

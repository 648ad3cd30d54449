"""Kernels write and the host reads: both have the layout of the launch context and the hang record, and may not import each other."""

import pytest

from pknumba.lowering import ptx
from pknumba.runtime import hang


@pytest.mark.parametrize("name", ["ERROR", "ABORT", "LIMIT", "CONTEXT_RANK", "CONTEXT_SIZE", "EPOCH", "NUMBER"])
def test_launch_context(name):
    assert getattr(ptx, name) == getattr(hang, name)


def test_hang_record():
    assert ptx.MAGIC == hang.MAGIC_VALUE
    for number, word in enumerate(ptx.RECORD):
        assert getattr(hang, word.upper()) == number

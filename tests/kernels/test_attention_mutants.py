"""Every synchronising line of attention matters: without it, or with it bent, the interpreter notices."""

import pytest

from pknumba.checking import mutate
from pknumba.kernels import Attention


@pytest.mark.timeout(120)
def test_every_mutant_is_noticed():
    found = mutate(Attention, seeds=9)
    assert found and found.count >= 44, str(found)

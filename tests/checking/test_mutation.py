"""mutate(): what matters is noticed, what does nothing is listed."""

import pytest

from pknumba import errors
from pknumba.checking import mutate

from . import kernels


def test_a_line_too_many_survives():
    found = mutate(kernels.Twice, worlds=(2,), seeds=4)
    assert not found and found.count > len(found.alive) and found.kernel == "Twice"
    assert all("store_async_wait" in label or "read only" in label for label in found.alive), found.alive
    assert len(found.alive) == 4 and "nobody notices" in str(found)


def test_a_kernel_of_ones_own():
    said = []
    found = mutate(kernels.Copy, seeds=12, progress=said.append)
    assert found and found.count >= 8 and len(said) == found.count, str(found)
    assert "every synchronising line matters" in str(found)


def test_a_wrong_kernel_is_not_mutated():
    with pytest.raises(errors.RaceError):
        mutate(kernels.Hasty, worlds=(2,), seeds=2)

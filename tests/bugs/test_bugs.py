"""The catalogue of bugs: each is found in every schedule and told in the words it promises; the right line is clean."""

import re

import pytest

from pknumba import errors
from pknumba.checking import WrongResult

from . import bench

SCHEDULES = [("fifo", "eager"), ("fifo", "late"), ("random", "random"), ("pct", "random"), ("starve", "random"), ("random", "late"),
             ("pct", "late"), ("starve", "eager")]
NAMES = bench.names()


def test_there_are_many():
    assert len(NAMES) >= 30


@pytest.mark.parametrize("name", NAMES)
def test_found(name):
    kernel = bench.load(name, right=False)
    kinds = tuple(getattr(errors, kind, WrongResult) for kind in kernel.ERROR.split(" or "))
    told = set()
    for seed, (policy, completion) in enumerate(SCHEDULES * 2):
        with pytest.raises(kinds) as caught:
            bench.run(kernel, seed=seed, policy=policy, completion=completion)
        text = str(caught.value)
        told |= {word for word in kernel.WORDS if word in text}
        if WrongResult not in kinds:
            assert f'seed={seed}, policy="{policy}"' in text, text
            assert f"{name}.py:" in text or "plays in a warp" in text or "the block ended with" in text, text
    assert told == set(kernel.WORDS), f"never said: {set(kernel.WORDS) - told}"


@pytest.mark.parametrize("name", NAMES)
def test_the_right_line_is_clean(name):
    kernel = bench.load(name, right=True)
    for seed, (policy, completion) in enumerate(SCHEDULES * 2):
        bench.run(kernel, seed=seed, policy=policy, completion=completion)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_says_what_it_shows(name):
    text = bench.source_of(name)
    assert bench.corrected(text)[1] == text.count("# wrong\n") >= 1
    title = bench.load(name, right=False).__doc__.splitlines()[0]
    assert re.match(r"[A-Z].*: .*\.$", title) and len(text.splitlines()) < 60

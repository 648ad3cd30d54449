"""The error bound of scripts/operators.py holds for right results and is broken by wrong ones."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"


@pytest.fixture(scope="module")
def operators():
    spec = importlib.util.spec_from_file_location("operators", SCRIPTS / "operators.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault("operators", module)
    spec.loader.exec_module(module)
    return module


def share(operators, operator, inputs, result, rank=0):
    value, bound = operator.expected(inputs, rank, np.arange(len(result)), "bfloat16" if result.dtype.name == "bfloat16" else "float16")
    return np.max(np.abs(result.astype(np.float64) - value) / bound)


@pytest.fixture(params=["bfloat16", "float16"])
def case(request, operators):
    """(operator, inputs of 4 ranks, result rounded as a right implementation may round)."""
    operator = operators.OPERATORS["gemm_all_reduce"]
    inputs = operators.Inputs(operator, 4, (96, 80, 200), request.param)
    terms = [(A.astype(np.float32) @ B.astype(np.float32)).astype(A.dtype) for A, B in map(inputs, range(4))]
    return operator, inputs, np.sum([t.astype(np.float32) for t in terms], axis=0).astype(terms[0].dtype)


def test_a_right_result_is_within_its_bound(operators, case):
    assert share(operators, *case) <= 1


def test_the_bound_is_tight(operators, case):
    """A quarter of the bound is used by rounding alone, so an error of four times a rounding breaks it."""
    assert share(operators, *case) > 0.25


def test_a_missing_rank_is_outside(operators, case):
    operator, inputs, _ = case
    terms = [A.astype(np.float32) @ B.astype(np.float32) for A, B in map(inputs, (0, 1, 2, 2))]
    assert share(operators, operator, inputs, np.sum(terms, axis=0).astype(inputs(0)[0].dtype)) > 10


def test_one_wrong_element_is_outside(operators, case):
    operator, inputs, result = case
    result[17, 5] *= 1.1
    assert share(operators, operator, inputs, result) > 1


def test_groups(operators):
    """The bound of a product of groups holds for it, and not for that of a neighbouring group."""
    operator = operators.OPERATORS["grouped_gemm"]
    inputs = operators.Inputs(operator, 1, (64, 80, 200), "bfloat16")
    (A, B), ends = inputs(0), operator.ends(64, inputs(0)[1])
    right = np.concatenate([a.astype(np.float32) @ b.astype(np.float32) for a, b in zip(np.split(A, ends[:-1]), B)]).astype(A.dtype)
    assert 0.25 < share(operators, operator, inputs, right) <= 1
    right[40] = (A[40].astype(np.float32) @ B[1].astype(np.float32)).astype(A.dtype)
    assert share(operators, operator, inputs, right) > 10


def test_nan_is_outside(operators, case):
    operator, inputs, result = case
    result[0, 0] = np.nan
    assert not share(operators, operator, inputs, result) <= 1


def test_every_rank_draws_its_own(operators):
    inputs = operators.Inputs(operators.OPERATORS["gemm"], 3, (16, 16, 16), "float16")
    first = [inputs(rank)[0] for rank in range(3)]
    assert not any(np.array_equal(first[i], first[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    assert np.array_equal(first[1], operators.Inputs(operators.OPERATORS["gemm"], 2, (16, 16, 16), "float16")(1)[0])


def test_relative_error(operators):
    assert operators.relative_error(np.ones((2, 2)), np.ones((2, 2))) == 0
    assert operators.relative_error(np.zeros((0, 4)), np.zeros((0, 4))) == 0
    assert np.isnan(operators.relative_error(np.full((2, 2), np.nan), np.ones((2, 2))))

"""Every operator by ranks that share a card: what calls choose has room there, whoever's blocks come first."""

from pathlib import Path

import pytest

from pknumba import World

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
SHAPE, HEADS = (300, 264, 200), (136, 64, 200)
OPERATORS = """gemm gemm_all_reduce all_gather_gemm gemm_reduce_scatter gemm_all_to_all all_reduce all_reduce_rmsnorm all_gather
reduce_scatter all_to_all broadcast reduce gather scatter send_recv grouped_gemm moe_dispatch_gemm moe_combine
moe_layer attention ring_attention ulysses_attention decode_attention""".split()


@pytest.fixture
def operators(monkeypatch):
    """scripts/operators.py."""
    monkeypatch.syspath_prepend(SCRIPTS)
    import operators
    return operators


def test_all_are_here(operators):
    assert sorted(OPERATORS) == sorted(operators.OPERATORS)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("size, card_sms", [(2, 9), (3, 14)])
def test_on_a_card(name, size, card_sms, operators):
    """Two calls in a row."""
    operator, shape = operators.OPERATORS[name], HEADS if name.endswith("attention") else SHAPE
    inputs = operators.Inputs(operator, size, shape, "bfloat16")

    def main(world):
        A, B = (world.asarray(x) for x in inputs(world.rank))
        out = world.symmetric(shape[:2], "bfloat16") if operator.symmetric else None
        for _ in range(2):
            operator.call(world, A, B, out, None, shape[0])
        return True
    assert all(World.local(size, executor="interpreter", card_sms=card_sms, seed=size, races=False).run(main))

"""Virtual time: operations cost what the card's constants say, and what is shared is waited for."""

import json
from functools import partial

import numpy as np
import pytest

import pknumba
from pknumba.__main__ import main
from pknumba.errors import ConfigError
from pknumba.interpreter import Session, VirtualTime, dtype_of
from pknumba.tuning import H200, simulate

SMALL = dict(num_sms=4)


def seconds(op, *shape, hardware=H200, **options):
    return simulate(op, *shape, hardware=hardware, **{**SMALL, **options}).seconds


def test_the_same_every_time_and_with_values():
    shape = "gemm_all_reduce", 256, 256, 256, 2
    assert seconds(*shape) == seconds(*shape) == pytest.approx(seconds(*shape, values=True), rel=1e-9)


def test_values_are_right_when_they_are_computed():
    def run(world):
        rng = np.random.default_rng(world.rank)
        A, B = (rng.integers(-3, 4, (128, 128)).astype(pknumba.interpreter.dtype_of("bfloat16")) for _ in range(2))
        return A.astype(float) @ B.astype(float), np.array(pknumba.gemm_all_reduce(world, A, B), float)
    world = pknumba.World.local(2, executor="interpreter", num_sms=4, races=False, time=VirtualTime(H200))
    found = world.run(run)
    assert all((C == found[0][0] + found[1][0]).all() for _, C in found)


@pytest.mark.parametrize("server, change, least", [("tensor cores", dict(tensor=0.1), 3), ("memory", dict(memory=0.002), 5),
                                                   ("port in", dict(port=0.05), 3)])
def test_the_slowest_server_decides(server, change, least):
    """A card whose tensor cores, memory or ports are slower takes longer, and says what was busy."""
    slow = H200.replace(**{name: getattr(H200, name) * factor for name, factor in change.items()})
    usual, found = seconds("gemm", 512, 512, 1024), simulate("gemm", 512, 512, 1024, hardware=slow, **SMALL)
    assert found.seconds > least * usual and found.busiest(1)[0][0] == server and found.busiest(1)[0][1] > 0.8


def test_tensor_cores_of_an_sm_are_shared():
    found = simulate("gemm", 512, 512, 512, trace="time", **SMALL)
    work = 2 * 512**3 / (4 * H200.tensor / H200.sms)
    assert max(busy for (kind, *_), busy in found.time.busy.items() if kind == "tensor cores") >= 0.99 * work
    for block in range(4):
        ends = sorted(e.end for e in found.events if e.kind == "mma" and e.block == block)
        assert len(ends) > 1 and all(b > a for a, b in zip(ends, ends[1:]))      # one after the other, whoever multiplies


def test_links_are_shared():
    """A broadcast leaves one rank's link size - 1 times; an all-gather leaves every link as often. Both take as long as one link needs."""
    slow = H200.replace(**{name: getattr(H200, name) / 100 for name in ("register", "tma")})
    one = 512 * 512 * 2 / slow.register
    for op in ("broadcast", "all_gather"):
        times = [seconds(op, 512, 512, 1, size, hardware=slow) for size in (2, 4)]
        assert times[0] == pytest.approx(one, rel=0.2) and times[1] == pytest.approx(3 * one, rel=0.2)
    assert seconds("all_gather", 512, 512, 1, 4, hardware=slow, ranks_per_card=4) < one


def test_a_signal_to_another_card_takes_longer():
    far = H200.replace(peer_s=5e-5)
    assert seconds("all_reduce", 8, 8, 1, 2, hardware=far) > 5e-5 > 2 * seconds("all_reduce", 8, 8, 1, 2, hardware=far, ranks_per_card=2)


def test_a_program_of_ones_own():
    """Two products in a row take twice as long as one; attention takes longer where its registers are slower."""
    def main(world, calls=2):
        A = np.zeros((256, 256), dtype_of("bfloat16"))
        for _ in range(calls):
            pknumba.gemm(world, A, A)
    both, one = simulate(main, **SMALL).seconds, simulate(partial(main, calls=1), **SMALL).seconds
    assert both == pytest.approx(2 * one, rel=0.05)

    def attend(world):
        Q = np.zeros((1, 2, 128, 64), dtype_of("bfloat16"))
        pknumba.attention(world, Q, Q, Q)
    usual, slow = (simulate(attend, hardware=card, **SMALL).seconds for card in (H200, H200.replace(alu=H200.alu / 20)))
    assert slow > 1.3 * usual


def test_a_depth_in_slices():
    """Few tiles of great depth: four blocks for each are faster than one."""
    cfg = pknumba.GemmConfig(tile_m=64, tile_n=128, stages=8, consumers=1)
    shape = "gemm", 128, 128, 4096
    one, four = (seconds(*shape, config=c, num_sms=8) for c in (cfg, cfg.replace(slices=4)))
    assert four < 0.75 * one


def test_a_measured_product():
    """benchmarks/results/gemm.jsonl: 2048 x 2048 x 2048 in 27.4 microseconds."""
    assert simulate("gemm", 2048, 2048, 2048).seconds == pytest.approx(27.4e-6, rel=0.2)


def test_timeline_on_the_command_line(tmp_path, capsys):
    where = tmp_path / "t.json", tmp_path / "t.png"
    words = "timeline gemm_all_reduce --world 3 --m 128 --n 128 --k 128 --sms 4 --json".split()
    assert main([*words, str(where[0]), "--png", str(where[1])]) == 0
    said = capsys.readouterr().out
    assert "us in virtual time" in said and "busiest: " in said and where[1].read_bytes()[:4] == b"\x89PNG"
    events = [e for e in json.loads(where[0].read_text())["traceEvents"] if e["ph"] == "X"]
    assert {e["pid"] for e in events} == {0, 1, 2} and {"mma", "copy", "wait", "access"} <= {e["cat"] for e in events}
    again = tmp_path / "again.png"
    assert main(["timeline", "--load", str(where[0]), "--png", str(again)]) == 0 and again.read_bytes()[:4] == b"\x89PNG"
    assert main(["timeline", "--load", str(where[1])]) == 2 and main(["timeline"]) == 2
    predicted = float(said.split(" us in virtual time")[0].split()[-1])
    assert max(e["ts"] + e["dur"] for e in events) == pytest.approx(predicted, rel=0.02)


def test_explain_on_the_command_line(capsys):
    assert main("explain gemm_reduce_scatter --m 4096 --n 4096 --k 512 --world 8 --card h100".split()) == 0
    assert "decides" in capsys.readouterr().out
    assert main("explain gemm --world 2 --schedule magic".split()) == 2 and "no schedule 'magic'" in capsys.readouterr().err


def test_refuses():
    with pytest.raises(ConfigError, match="no operator 'gem'"):
        simulate("gem", 1, 1, 1)
    with pytest.raises(ConfigError, match="ranks_per_card = 0"):
        simulate("gemm", 1, 1, 1, ranks_per_card=0)
    with pytest.raises(ConfigError, match="over several processes"):
        Session(time=VirtualTime(H200), heap=object())

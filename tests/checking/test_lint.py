"""lint(): silent about every shipped kernel and every right line of the catalogue, and what it finds in the wrong ones."""

import pytest

from pknumba import kernels as shipped
from pknumba.__main__ import main
from pknumba.checking import lint
from pknumba.checking.lint import RULES, told
from pknumba.checking.subject import Subject
from pknumba.config import GemmConfig

from . import kernels
from ..bugs import bench

SHIPPED = [k for k in (getattr(shipped, n) for n in shipped.__all__) if isinstance(k, type) and hasattr(k, "roles")]
#: File of the catalogue -> the rules that read its bug.
READ = {
    "aliased_tiles": "wait-without-arrival", "ends_while_sending": "ends-while-sending", "fence_by_reader": "tile-without-fence",
    "few_bytes": "bytes-announced", "lapped_parity": "wait-without-arrival", "many_bytes": "bytes-announced",
    "multicast_into_use": "multicast-into-use",
    "relaxed_addition": "gpu-scope-atomic",
    "no_empty_wait": "wait-without-arrival", "no_epoch": "counter-without-epoch", "no_fence_before_mma": "tile-without-fence",
    "no_fence_before_store": "tile-without-fence", "no_full_wait": "read-without-wait", "no_read_wait": "arrive-before-read",
    "signal_after_read_wait": "signal-before-written", "signal_before_add": "signal-before-written",
    "stuck_parity": "constant-parity", "sync_in_a_branch": "barrier-in-branch", "wrong_arriver": "wrong-arriver",
}


def read(name, right):
    text, kernel = bench.source_of(name), bench.load(name, right)
    declared = getattr(kernel, "SEMAPHORES", {}).items()
    semaphores, of_cluster = {k: v[1] for k, v in declared}, {k for k, v in declared if "cluster" in v}
    return lint(Subject.of_source(bench.corrected(text)[0] if right else text, name, semaphores, of_cluster))


@pytest.mark.parametrize("kernel", SHIPPED, ids=lambda k: k.__name__)
def test_silent_about_shipped_kernels(kernel):
    assert not lint(kernel), told(lint(kernel), kernel.__name__)


def test_configurations():
    assert not lint(shipped.Gemm, GemmConfig(ping_pong=True))


@pytest.mark.parametrize("name", bench.names())
def test_catalogue(name):
    assert not read(name, right=True), told(read(name, right=True), name)
    found = {f.rule for f in read(name, right=False)}
    assert READ[name] in found if name in READ else not found


def source(text):
    return lint(Subject.of_source(text, "here.py"))


@pytest.mark.parametrize("rule, text", [
    ("equality-on-counter", "def communicator(cfg, g, s, task):\n    while g.done.value(0) != 3:\n        pass\n"),
    ("spins-in-python", "def communicator(cfg, g, s, task):\n    while g.flag < 3:\n        pause(1)\n"),
    ("arrive-before-mma-wait", "def consumer(cfg, g, s, task):\n    wait(s.e[0], 0)\n    acc = mma(acc, s.a[0], s.b[0], True, False)\n"
     "    arrive(s.e[0])\n"),
    ("counter-without-signal", "def storer(cfg, g, s, task):\n    wait_until(g.done, 0, g.epoch)\n"),
    ("relaxed-wait", "def storer(cfg, g, s, task):\n    signal(g.done, 0, 1)\n\n\ndef communicator(cfg, g, s, task):\n"
     "    if times(g.done, 0) >= g.epoch:\n        copy_box(g.Y, g.X, task.id, g.box, 1, 0, 0)\n"),
    ("gpu-scope-atomic", "def storer(cfg, g, s, task):\n    tick(g.done, 0)\n\n\ndef communicator(cfg, g, s, task):\n"
     "    wait_until(g.done, 0, g.epoch)\n"),
    ("wait-without-arrival", "def loader(cfg, g, s, task):\n    arrive(s.full[0])\n"),
])
def test_other_rules(rule, text):
    assert rule in {f.rule for f in source(text)}


def test_one_hand_over_and_grid():
    class Wide(GemmConfig):
        """A configuration that says how many blocks there are."""
        blocks = 200

    class Alone(shipped.GemmAllReduce):
        """Nobody ends its calls."""

        @classmethod
        def all_counters(kernel):
            return kernel.counters

    subject = Subject.of_kernel(Alone)
    subject.cfg = Wide()
    found = {f.rule: f for f in lint(subject)}
    assert {"one-hand-over", "grid-not-resident"} <= set(found)
    assert found["one-hand-over"].file.endswith("gemm_all_reduce.py") and found["one-hand-over"].line > 0


def test_the_bug_of_decision_0004():
    """Lint reads it off, and the GEMM that has its semaphore is left alone."""
    found = lint(kernels.Lapped)
    assert [(f.rule, f.code) for f in found] == [("turns-share-a-ring", "wait(s.c_empty[stage], phase ^ 1)")]


def test_roles_that_call_roles():
    """A storer that extends another's is read as a whole, each line with its own file."""
    found = lint(kernels.Hasty)
    assert [f.rule for f in found] == ["signal-before-written"] and "store_async_read_wait" in found[0].text
    assert found[0].file.endswith("tests/checking/kernels.py") and found[0].code.startswith("signal(")


def test_every_rule_is_shown_somewhere():
    shown = set(READ.values()) | {"equality-on-counter", "spins-in-python", "arrive-before-mma-wait", "counter-without-signal",
                                  "one-hand-over", "grid-not-resident", "turns-share-a-ring", "relaxed-wait", "gpu-scope-atomic"}
    assert set(RULES) <= shown
    assert all(rule.__doc__.endswith((".", "pattern.")) for rule in RULES.values())


def test_command(capsys):
    assert main(["check", "gemm", "--lint"]) == 0 and "nothing to say" in capsys.readouterr().out
    assert main(["check", f"{kernels.__file__}:Hasty", "--lint"]) == 1
    assert "signal-before-written: storer: signal(g.done, task.id, task.owner): follows store_async" in capsys.readouterr().out

"""Order between the workers of one role in a block: meet, or take turns. Named barriers with literal numbers.

Number 0 is the whole block's, 1 to 3 are those of single warpgroups (``fence_async``), ``SYNC`` is ``sync``'s, ``TURNS`` and the
one after it belong to turns.
"""

from .. import interpreter
from ..errors import ContractError
from ..lowering import need, primitive

SYNC, TURNS = 4, 8


def _alone(role):
    return f"{role.name}: sync of workers that take turns. They are not at the same task, so they cannot meet. Use turn_wait and turn_pass."


@primitive(scope=("warp", "warpgroup"))
def sync(s):
    """Every worker of this role in the block has come, and sees what the others wrote to shared memory before.

    Args:
        s: the block's shared memory (names the role). Each worker must call it equally often. ContractError for workers in turns.

    PTX: bar.sync of the role's threads, literal barrier number.
    """
    role = interpreter.current().role
    if not role.together:
        raise ContractError(_alone(role), role=role.name)
    interpreter.sync()


@sync.lowering
def _(s):
    role = s.role
    need(role.together, _alone(role))
    # warps fill their block: without a count the barrier goes on without those that gave up and left
    text = f"bar.sync {SYNC};" if role.scope == "warp" else f"bar.sync {SYNC}, {128 * role.workers};"
    return lambda p, s_at: p(text)


@primitive(scope=("thread", "warp", "warpgroup"))
def follow(s):
    """The kernel before this one on its stream has ended, and this worker sees what it wrote: for roles of kernels with ``follows``.

    Args:
        s: the block's shared memory (names the role).

    Does nothing on the interpreter, where kernels come one after the other.

    PTX: griddepcontrol.wait.
    """


@follow.lowering
def _(s):
    return lambda p, s_at: p("griddepcontrol.wait;")


@primitive(scope="warpgroup")
def turn_wait(s, turn):
    """Ping-pong order: wait until the workers of the earlier turns have called ``turn_pass``. Does nothing in a role that works together.

    Args:
        s: the block's shared memory; turn: ``task.turn``.

    PTX: bar.sync of both warpgroups, literal barrier numbers.
    """
    role = interpreter.current().role
    if not role.together:
        interpreter.turn_wait(turn)


@turn_wait.lowering
def _(s, turn):
    return _turn(s.role, "sync", 0)


@primitive(scope="warpgroup")
def turn_pass(s, turn):
    """Ping-pong order: let the worker of the next turn go on. Pairs with ``turn_wait`` of the same turn.

    Args:
        s: the block's shared memory; turn: ``task.turn``.

    PTX: bar.arrive of both warpgroups, literal barrier numbers.
    """
    role = interpreter.current().role
    if not role.together:
        interpreter.turn_pass(turn)


@turn_pass.lowering
def _(s, turn):
    return _turn(s.role, "arrive", 1)


@primitive(scope="warpgroup")
def turn_first(s, part):
    """Before the first task: the turn is worker 0's. Called once by each of two workers in turns.

    Args:
        s: the block's shared memory; part: number of the worker.

    PTX: bar.arrive by worker 1, in place of the turn before the first.
    """


@turn_first.lowering
def _(s, part):
    def emit(p, s_at, part):
        with p.when(p.b.icmp_unsigned("==", part, p.const(1))):
            p(f"bar.arrive {TURNS}, 256;")
    return emit


def _turn(role, verb, shift):
    need(role.together or role.workers == 2, f"{role.name}: {role.workers} workers in turns. Turns are for two workers.")

    def emit(p, s_at, turn):
        if not role.together:
            for i in p.switch(p.group(), 2):
                p(f"bar.{verb} {TURNS + (i + shift) % 2}, 256;")
    return emit

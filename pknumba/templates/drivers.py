"""Which tasks a role is given: loops that both executors run, so that there is one schedule.

A factory takes the role and the kernel's ``steps`` and returns ``drive(cfg, g, s, part, place, places)``: ``place`` of
``places`` blocks (or of communicator warps), ``part`` the number of the worker in its block.
"""

from ..primitives import div, i32, keep_epoch, look, mod, record, signal, signal_all, stamp, turn_first, wait_until
from ..tiles import Task, TileTask


def located(role, locate):
    """The role, given tasks that say where they lie."""
    def play(cfg, g, s, task):
        row, col, first, peer = locate(cfg, g, task)
        role(cfg, g, s, TileTask(task.id, task.turn, task.part, task.owner, task.step, row, col, first, peer))
    return play


def recorded(factory):
    """A factory whose role records each of its tasks as an interval."""
    def make(role, steps):
        from ..lowering.register import device

        def play(cfg, g, s, task):
            begin = stamp(s)
            role(cfg, g, s, task)
            record(s, begin, task.id)
        return factory(device(play), steps)
    return make


def together(role, steps):
    """Tasks place, place + places, ...: every worker of the role takes part in each."""
    def drive(cfg, g, s, part, place, places):
        turn, step = i32(0), i32(0)
        for t in range(place, g.tasks, places):
            role(cfg, g, s, Task(i32(t), turn, part, mod(t, g.world_size), step))
            step = i32(step + steps(cfg, g, i32(t)))
            turn = i32(turn + 1)
    return drive


def emptied(kernel):
    """``together`` of a loader in a cluster, which at last waits until all that it filled has been given back: blocks of the cluster arrive
    here to give it back, and must not arrive at a block that has left."""
    def factory(role, steps):
        def drive(cfg, g, s, part, place, places):
            turn, step = i32(0), i32(0)
            for t in range(place, g.tasks, places):
                role(cfg, g, s, Task(i32(t), turn, part, mod(t, g.world_size), step))
                step = i32(step + steps(cfg, g, i32(t)))
                turn = i32(turn + 1)
            kernel.emptied(cfg, g, s, step)
        return drive
    return factory


def counted_blocks(role, steps):
    """As ``together``; once every block of this rank has done its tasks, all know which call this is: the next may have another number."""
    def drive(cfg, g, s, part, place, places):
        turn, step = i32(0), i32(0)
        for t in range(place, g.tasks, places):
            role(cfg, g, s, Task(i32(t), turn, part, mod(t, g.world_size), step))
            step = i32(step + steps(cfg, g, i32(t)))
            turn = i32(turn + 1)
        signal(g.ended, 0, g.rank)
        if place == 0:
            wait_until(g.ended, 0, i32(g.epoch * places))
            keep_epoch(g.ended, g.epoch)
    return drive


def arranged(role, steps):
    """As ``together``, or where there is a list, ``g.turns`` long for each block, the tasks of its own list up to a negative one. What is
    listed for a block lies together in memory, so that looking there seldom leaves the SM."""
    def drive(cfg, g, s, part, place, places):
        step = i32(0)
        for turn in range(g.turns):
            number = i32(turn * places + place)
            if cfg.causal:                      # no branch on g.listed: the main loop would lose its uniform registers
                number = i32(number + g.listed * (look(g.order, i32(g.listed * (place * g.turns + turn))) - number))
            if number < 0 or number >= g.tasks:
                break
            role(cfg, g, s, Task(number, i32(turn), part, mod(number, g.world_size), step))
            step = i32(step + steps(cfg, g, number))
    return drive


def in_turns(role, steps):
    """The same tasks, each given to one of two workers in turn (ping-pong)."""
    def drive(cfg, g, s, part, place, places):
        turn_first(s, part)
        turn, step = i32(0), i32(0)
        for t in range(place, g.tasks, places):
            if mod(turn, 2) == part:
                role(cfg, g, s, Task(i32(t), turn, i32(0), mod(t, g.world_size), step))
            step = i32(step + steps(cfg, g, i32(t)))
            turn = i32(turn + 1)
    return drive


def pieces(role, steps):
    """Pieces of the tiles that this rank owns (task.owner is the rank), then the end of the call.

    The call is over for a rank when every communicator of every rank has read and written what it shares with it: the
    next call may then overwrite it.
    """
    def drive(cfg, g, s, part, place, places):
        mine = div(i32(g.tasks - g.rank + g.world_size - 1), g.world_size)
        for i in range(place, i32(mine * cfg.pieces), places):
            turn = div(i, cfg.pieces)
            role(cfg, g, s, Task(i32(turn * g.world_size + g.rank), turn, mod(i, cfg.pieces), g.rank, i32(0)))
        signal_all(g.finished, g.rank)
        if place == 0:
            for peer in range(g.world_size):
                wait_until(g.finished, i32(peer), i32(g.epoch * places))
            keep_epoch(g.finished, g.epoch)
    return drive

"""Ranks that are slow, not broken: nothing fails, and who waits says for whom."""

import re


def test_a_slow_role_and_slow_host_code_are_named(job):
    """A rank that waits in a kernel says which role of which rank is at work, at which line; one in host code too."""
    done = job(3, """
    from pknumba.interpreter import Counters
    from pknumba.tiles import Role

    world = World.mpi(executor="interpreter")
    shared()
    counters = Counters("ready", world.counters("ready", 8).arrays, world.rank)
    launch = world.session.launch(world.rank, "k", 1)

    def slow():
        time.sleep(1.4)
        for peer in range(3):
            counters.add(peer, 3)

    launch.role(launch.block(0), Role("x"), 0, slow if world.rank == 1 else lambda: counters.wait(3, 1))
    launch.wait()
    if world.rank == 2:
        time.sleep(1.4)
    world.barrier()
    world.close()
    say("fine")
    """, {"PKNUMBA_HEARTBEAT_S": "0.4"})
    assert done.status == 0 and done.text.count("fine") == 3, done.text
    assert re.search(r"pknumba: rank 0 has waited \d s for ready\[3\] of rank 0 >= 1", done.text), done.text
    assert re.search(r"rank 1 works: rank 1 block 0 x at script.py:\d+ \(slow\) for \d s", done.text), done.text
    assert re.search(r"rank 0 has waited \d s in host code", done.text), done.text
    assert re.search(r"rank 2 works: host code at script.py:\d+ \(<module>\) for \d s", done.text), done.text
    told = re.findall(r"pknumba: rank (\d)", done.text)
    assert told.count("0") > len(told) / 2, "one rank, the first that waits, speaks for all"


def test_a_rank_that_comes_late_is_waited_for(job):
    """By default nothing is said for ten seconds, and the result is right."""
    done = job(2, """
    with World.mpi(executor="interpreter") as world:
        shared()
        if world.rank == 1:
            time.sleep(1.5)
        A, B = arrays(world)
        C = gemm_all_reduce(world, A, B)
        say("sum", float(np.asarray(C, np.float32).sum()))
    """)
    assert done.status == 0 and "has waited" not in done.text, done.text
    first, second = re.findall(r"sum (\S+)", done.text)
    assert first == second

"""The rules of lint. Each is a function of a Subject that yields (role, Call or None, text) and knows no executor.

They follow the calls of a role in the order of the source, so they can be wrong about code that jumps; they are written to be silent
where they cannot know.
"""

import ast

from .subject import attribute, words

#: Rule's name -> function.
RULES = {}
_STORES = ("store_async", "store_add_async", "store_min_async", "store_max_async", "store_ragged_async")
_LOADS = ("load_async", "load_multicast", "load_ragged_async")
_SIGNALS = ("signal", "signal_all", "announce", "check_in", "barrier")
_ARRIVALS = ("arrive", "expect")


def rule(function):
    """Register a rule under its name, dashes for underscores."""
    RULES[function.__name__.replace("_", "-")] = function
    return function


def _zero(call):
    """Whether a wait leaves nothing pending."""
    args = call.node.args
    return not args or isinstance(args[-1], ast.Constant) and args[-1].value == 0 or call.name.endswith("_wait") and not args


def _tile(node):
    return attribute(node, "s")


@rule
def signal_before_written(subject):
    """A signal goes out while a bulk store may not be written: PK's pattern."""
    for role, calls in subject.roles.items():
        open_store = read = None
        for call in calls:
            if call.name in _STORES:
                open_store, read = call, None
            elif call.name == "store_async_wait" and _zero(call):
                open_store = None
            elif call.name == "store_async_read_wait":
                read = call
            elif call.name in _SIGNALS and open_store is not None:
                how = "only read (store_async_read_wait)" if read else "not waited for"
                yield role, call, (f"follows {ast.unparse(open_store.node)}, which is {how}. A signal must follow the write. "
                                   "Call store_async_wait(0) before it.")


@rule
def tile_without_fence(subject):
    """A tile is written by ordinary stores and handed on to the copy engine or the tensor cores without a proxy fence."""
    asynchronous = set()
    for calls in subject.roles.values():
        for call in calls:
            if call.name in _STORES or call.name == "mma":
                asynchronous |= {_tile(a) for a in call.node.args} - {None}
    for role, calls in subject.roles.items():
        written = {}
        for call in calls:
            tiles = [t for t in (_tile(a) for a in call.node.args) if t]
            if call.name in ("store", "store_rows", "write") and tiles:
                written[tiles[0]] = call
            elif call.name == "fence_async":
                for t in tiles:
                    written.pop(t, None)
            elif call.name == "arrive" or call.name in _STORES or call.name == "mma":
                mine = [t for t in tiles if t in written] if call.name != "arrive" else [t for t in written if t in asynchronous]
                for t in mine:
                    yield role, call, (f"s.{t} was written at line {written.pop(t).node.lineno} and not fenced. Ordinary writes reach the "
                                       f"async proxy only through a fence. Call fence_async(s.{t}) after the write.")


@rule
def wait_without_arrival(subject):
    """A semaphore that is waited for and never arrived on, or the other way round."""
    if subject.opaque("s"):
        return
    waits, arrivals = {}, {}
    for role, calls in subject.roles.items():
        for call in calls:
            if call.name == "wait" and call.node.args:
                waits.setdefault(_tile(call.node.args[0]), (role, call))
            elif call.name in _ARRIVALS and call.node.args:
                arrivals.setdefault(_tile(call.node.args[0]), (role, call))
    for name, (role, call) in waits.items():
        if name and name not in arrivals:
            yield role, call, f"nobody arrives on s.{name}. A phase completes by arrivals. Let a role arrive on it."
    for name, (role, call) in arrivals.items():
        if name and name not in waits:
            yield role, call, f"nobody waits for s.{name}. What is handed over must be taken. Wait for it where it is read."


@rule
def wrong_arriver(subject):
    """A role arrives on a semaphore that counts another role."""
    for role, calls in subject.roles.items():
        for call in calls:
            name = _tile(call.node.args[0]) if call.name in _ARRIVALS and call.node.args else None
            by = (subject.semaphores or {}).get(name)
            if by and by != role:
                yield role, call, f"s.{name} is declared by={by!r}. Only that role may arrive. Declare another semaphore."


@rule
def bytes_announced(subject):
    """The tiles announced on a semaphore are not those loaded on it."""
    for role, calls in subject.roles.items():
        announced, loaded = {}, {}
        for call in calls:
            if call.name == "expect" and call.node.args:
                announced.setdefault(_tile(call.node.args[0]), (call, set()))[1].update(_tile(a) for a in call.node.args[1:])
            elif call.name in _LOADS and len(call.node.args) >= 4:
                loaded.setdefault(_tile(call.node.args[3]), set()).add(_tile(call.node.args[0]))
        for name, (call, tiles) in announced.items():
            if name and None not in tiles | loaded.get(name, set()) and tiles != loaded.get(name, tiles):
                yield role, call, (f"announces {_list(tiles)}, and {_list(loaded[name])} are loaded on s.{name}. The phase "
                                   "completes with the announced bytes. Announce what is loaded.")


def _list(tiles):
    return ", ".join(sorted(f"s.{t}" for t in tiles)) or "nothing"


@rule
def constant_parity(subject):
    """A wait in a loop for the same parity in every step."""
    for role, calls in subject.roles.items():
        for call in calls:
            if call.name != "wait" or call.loop is None or len(call.node.args) < 2 or not isinstance(call.node.args[1], ast.Constant):
                continue
            index = words(call.node.args[0])
            moving = {n.id for n in ast.walk(call.loop.target) if isinstance(n, ast.Name)} if isinstance(call.loop, ast.For) else set()
            if not any(isinstance(n, ast.Name) and n.id in moving for n in ast.walk(call.node.args[0])) or "stage" in index:
                yield role, call, ("waits for one parity in every step of a loop. Parities alternate from lap to lap. Use the phase of "
                                   "ring(step, stages).")


@rule
def arrive_before_mma_wait(subject):
    """A stage is given back, or an accumulator stored, while the tensor cores may be reading."""
    for role, calls in subject.roles.items():
        flying = None
        for call in calls:
            if call.name == "mma":
                flying = call
            elif call.name == "mma_wait":
                flying = None
            elif flying is not None and call.name in ("arrive", "store", "signal"):
                yield role, call, (f"follows {ast.unparse(flying.node)} without mma_wait. Tensor cores read their operands until "
                                   "then. Call mma_wait first.")
                flying = None


@rule
def ends_while_sending(subject):
    """A role ends and nobody has waited until its bulk stores have read shared memory."""
    for role, calls in subject.roles.items():
        last = None
        for call in calls:
            if call.name in _STORES:
                last = call
            elif call.name in ("store_async_wait", "store_async_read_wait"):
                last = None
        if last is not None:
            yield role, last, ("is the last store and nobody waits for it. Shared memory is gone when the block ends, and its tile may be "
                               "overwritten. Call store_async_read_wait(0) or store_async_wait(0).")


@rule
def arrive_before_read(subject):
    """A buffer is given back while a bulk store may still read it."""
    for role, calls in subject.roles.items():
        sent = None
        for call in calls:
            if call.name in _STORES:
                sent = call
            elif call.name in ("store_async_wait", "store_async_read_wait"):
                sent = None
            elif call.name == "arrive" and sent is not None:
                yield role, call, (f"follows {ast.unparse(sent.node)}, which may still be reading its tile. Whoever waits for this "
                                   "may overwrite it. Call store_async_read_wait(0) before.")
                sent = None


@rule
def read_without_wait(subject):
    """A role uses a tile that another role loads, and has not waited for a semaphore of the load."""
    if subject.opaque("s"):
        return
    loads = {}
    for calls in subject.roles.values():
        for call in calls:
            if call.name in _LOADS and len(call.node.args) >= 4:
                loads.setdefault(_tile(call.node.args[0]), set()).add(_tile(call.node.args[3]))
    for role, calls in subject.roles.items():
        waited = set()
        for call in calls:
            if call.name == "wait" and call.node.args:
                waited.add(_tile(call.node.args[0]))
            elif call.name in ("mma", "load", "load_rows", "read", *_STORES):
                for tile in dict.fromkeys(_tile(a) for a in call.node.args):
                    if tile in loads and None not in loads[tile] and not loads[tile] & waited:
                        yield role, call, (f"uses s.{tile} before a wait for {_list(loads[tile])}. A load completes when its "
                                           "semaphore does. Wait for that phase first.")


@rule
def multicast_into_use(subject):
    """A tile is filled in every block of a cluster by a role that has waited for its own block only."""
    for role, calls in subject.roles.items():
        waited = {_tile(call.node.args[0]) for call in calls if call.name == "wait" and call.node.args}
        for call in calls:
            if call.name == "load_multicast" and subject.of_cluster is not None and not waited & subject.of_cluster:
                yield role, call, ("fills a tile of every block of the cluster, and waits for no semaphore of=\"cluster\". Another block "
                                   "may be using it. Declare the semaphore of the ring's free stages of=\"cluster\".")


@rule
def turns_share_a_ring(subject):
    """Workers that take turns enter a ring they share in no order: a worker two laps early finds the parity it waits for."""
    for role, calls in subject.roles.items():
        passed, own = None, False
        for call in calls:
            by = (subject.semaphores or {}).get(_tile(call.node.args[0])) if call.name == "wait" and call.node.args else None
            if call.name == "turn_pass":
                passed, own = call, False
            elif by == role:
                own = True
            elif by and passed and not own:
                yield role, call, ("workers that take turns may enter this ring in any order. A parity does not tell laps apart. Let each "
                                   f"wait for a semaphore by={role!r} on which the one before arrives when it is through.")
                passed = None


@rule
def barrier_in_branch(subject):
    """A barrier of all workers under a condition that some of them do not meet."""
    for role, calls in subject.roles.items():
        for call in calls:
            if call.name == "sync" and any("part" in words(test) for test in call.tests):
                yield role, call, "stands under a condition on the worker. Every worker must come. Move it out of the branch."

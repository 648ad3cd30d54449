"""What every call of an operator does before it is packed: ranks agree on it, and the world remembers it."""

from ..errors import ContractError, PknumbaError

_REMEMBERED = 8192  # entries, three for each call


def agreed(world, name, kernel, checked, terms_of):
    """What ``checked()`` gives, once every rank's check has passed on the same terms. It costs messages the first time only.

    Args:
        checked: function that checks this rank's arguments: raises, or returns what it found.
        terms_of: function of that: the dict whose entries must be equal on all ranks.

    Raises, on every rank: what the check of some rank raised; or what ``world.agree`` raises for terms that differ.
    """
    found = problem = None
    try:
        found = checked()
        terms = terms_of(found)
        mark = "agreed", kernel, repr(terms)
        if mark in world.cache:
            return found
    except Exception as error:                   # noqa: B902 - the other ranks are told whatever it is
        problem = error
    for rank, said in enumerate(world.allgather(problem and (type(problem), str(problem)))):
        if said and not problem:
            kind = said[0] if issubclass(said[0], PknumbaError) else ContractError
            raise kind(f"{name}: rank {rank} cannot make this call. All ranks call with arguments that fit. It says: {said[1]}", rank=rank)
    if problem:
        raise problem
    world.agree(name, terms)
    world.cache[mark] = True
    return found


def least_sms(world):
    """SMs of the rank that has fewest, for what every rank must choose alike."""
    if "least SMs" not in world.cache:
        world.cache["least SMs"] = min(world.allgather(world.num_sms))
    return world.cache["least SMs"]


def sure_sms(world):
    """Of ``least_sms``, those that a rank has at any time: up to eight fewer where nothing parts a card among its ranks. (What MPS surely
    gives a rank is ``num_sms`` already.)"""
    if "sure SMs" not in world.cache:
        from ..runtime.on_gpu import spared
        least, alone = least_sms(world), world.size == 1 or links(world)
        world.cache["sure SMs"] = least if alone or not any(world.allgather(world.crowded)) else spared(least)
    return world.cache["sure SMs"]


def parted(world):
    """Whether ranks share cards, and MPS says how many SMs each has. The same on all ranks."""
    if "parted" not in world.cache:
        world.cache["parted"] = any(world.allgather(world.sharing)) and not any(world.allgather(world.crowded))
    return world.cache["parted"]


def links(world):
    """Whether every rank of several has a GPU of its own: what ranks have for each other goes over links. The same on all ranks."""
    if world.size == 1:
        return False
    if "links" not in world.cache:
        from ..runtime import driver
        mine = driver.device_info(world.device).uuid if world.executor == "gpu" else None
        world.cache["links"] = None not in (cards := world.allgather(mine)) and len(set(cards)) == world.size
    return world.cache["links"]


def remember(cache, key, call):
    """Keep a prepared call; forget the oldest half in programs that never use an array twice."""
    calls = [k for k, v in cache.items() if isinstance(v, type(call))] if len(cache) >= _REMEMBERED else ()
    for old in calls[:_REMEMBERED // 2]:
        del cache[old]
    cache[key] = call

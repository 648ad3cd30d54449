"""What the ranks of a world say to each other, judged: same call, same arguments."""

from ..errors import ConfigError, DTypeError, ShapeError, WorldError

__all__ = ["lines", "first_difference", "same_call", "ranks_text", "members"]

_KINDS = (("shape", ShapeError, "shape"), ("dtype", DTypeError, "dtype"), ("config", ConfigError, "configuration"))


def lines(value):
    """A dict as a list of (key, text) pairs: what ranks compare."""
    return [(str(key), str(item)) for key, item in value.items()]


def ranks_text(ranks):
    """"rank 2" or "ranks 0, 1 and 3"."""
    ranks = [str(r) for r in ranks]
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(ranks[:-1])} and {ranks[-1]}"


def first_difference(subject, everyone, say=ranks_text):
    """The error for the first key on which ranks differ, None if all agree.

    Args:
        subject: the call, for the message.
        everyone: for each rank, its :func:`lines`.
        say: what to call some ranks.
    """
    tables = [dict(pairs) for pairs in everyone]
    keys = list(dict.fromkeys(key for pairs in everyone for key, _ in pairs))
    for key in keys:
        groups = {}
        for rank, table in enumerate(tables):
            groups.setdefault(table.get(key), []).append(rank)
        if len(groups) > 1:
            return _error(subject, key, groups, say)
    return None


def _error(subject, key, groups, say):
    said = " and ".join(f"{text if text is not None else 'missing'} on {say(ranks)}" for text, ranks in groups.items())
    for word, kind, noun in _KINDS:             # noqa: B007 - what is found is used below
        if key == word or key.endswith((f".{word}", f"_{word}", f" {word}")) or (word == "config" and key.startswith("config.")):
            break
    else:
        kind, noun = WorldError, "value"
    return kind(f"{subject}: {key} is {said}. Every rank of a world passes the same {noun}. Make them equal on all ranks.",
                key=key, values={text: tuple(ranks) for text, ranks in groups.items()})


def same_call(calls, say=ranks_text):
    """Raise WorldError unless all ranks are in the same call. `calls`: for each rank, the name of what it does; `say`: what to call
    some ranks."""
    groups = {}
    for rank, name in enumerate(calls):
        groups.setdefault(name, []).append(rank)
    if len(groups) > 1:
        said = ", ".join(f"{say(ranks)} in {name}" for name, ranks in groups.items())
        raise WorldError(f"World: {said}. The ranks of a world make its collective calls in the same order. Look for a call that "
                         "only some ranks make.", calls=tuple(calls))


def members(ranks, size):
    """The ranks of a part of a world, as a tuple. Raises WorldError unless they are different ones of its ``size``."""
    ranks = tuple(int(r) for r in ranks)
    if not ranks or len(set(ranks)) < len(ranks) or min(ranks) < 0 or max(ranks) >= size:
        raise WorldError(f"World.split: ranks {list(ranks)}. They are different ranks out of 0 to {size - 1}.")
    return ranks

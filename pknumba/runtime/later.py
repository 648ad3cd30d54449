"""Memory that is given back once nobody can be waiting: a driver waits for every kernel of the device before it takes memory back.

While ranks that are threads of this process run, a kernel of one may wait for a kernel that another has yet to launch. If that one
were held up in the driver, because the garbage collector happened to drop an array or an earlier world in its thread, both would wait
for each other. So what is dropped meanwhile is kept until the ranks have ended; arrays of the same size take it up before.
"""

from contextlib import contextmanager

__all__ = ["ranks_running", "soon", "keep", "take"]

_running, _put_off, _kept = [0], [], {}


@contextmanager
def ranks_running():
    """While ranks run as threads: what is given back by ``soon`` and ``keep`` waits for the end."""
    _running[0] += 1
    try:
        yield
    finally:
        _running[0] -= 1
        while not _running[0] and _put_off:
            action, arguments = _put_off.pop()
            action(*arguments)


def soon(action, *arguments):
    """Call action(*arguments), now or when the ranks have ended. Finalisers do: they may be called in any thread, at any line."""
    if _running[0]:
        _put_off.append((action, arguments))
    else:
        action(*arguments)


def keep(place, pointer, free):
    """Give memory back by free(pointer). place: (device, stream, bytes): whoever asks for as much on that stream may have it before."""
    if _running[0]:
        _kept.setdefault(place, []).append(pointer)
        _put_off.append((_let_go, (place, free)))
    else:
        free(pointer)


def take(place):
    """Memory that was dropped on that stream, which what runs there has been launched before; None if there is none."""
    try:
        return _kept[place].pop()
    except (KeyError, IndexError):
        return None


def _let_go(place, free):
    pointer = take(place)
    if pointer is not None:
        free(pointer)

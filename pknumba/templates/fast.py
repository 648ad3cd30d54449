"""The cheap half of a call: what a repeated call needs to find its prepared launch.

A call is found by the places of its arrays. Of a torch tensor that is its address; the rest is compared for all tensors at once, in C, by
what torch itself uses to see whether a compiled function fits its arguments: to read it and look it up takes four times as long.
"""

import functools
import sys
from functools import partial
from operator import attrgetter, itemgetter

from ..errors import PknumbaError, WorldError
from .agreement import remember


def _torch(x):
    return x.data_ptr(), x.shape, x.stride(), x.dtype


def _cupy(x):
    return x.data.ptr, x.shape, x.strides, x.dtype


def _device(x):
    return x.pointer, x.shape, x.strides, x.dtype


_symmetric = attrgetter("mark")


def _unknown(x):
    return None


#: {type: function of an array of it}: what a packed launch knows of an array; and what of that no comparison tells, which is read at every
#: call. None for what no call is found by. They say nothing of who owns memory: another array at the same place and of the same form gives
#: the same launch. No array is False here, as where nobody wants one.
forms = {type(None): bool, bool: bool}
places = dict(forms)


def _meet(kind):
    """Choose how arrays of a type are read."""
    root = kind.__module__.partition(".")[0]
    if root == "pknumba":
        read = _symmetric if hasattr(kind, "peers_table") else _device if kind.__name__ == "DeviceArray" else _unknown
    else:
        read = {"torch": _torch, "cupy": _cupy}.get(root, _unknown)
    forms[kind] = read
    places[kind] = sys.modules["torch"].Tensor.data_ptr if read is _torch and _comparer() else read


@functools.cache
def _comparer():
    """Function (tensors) -> function (*others) whether those have these types, devices, dtypes, shapes and strides. None where torch
    has none that works as we know it."""
    torch = sys.modules["torch"]

    def compare(tensors):
        sizes, strides = [list(x.shape) for x in tensors], [list(x.stride()) for x in tensors]
        return torch._C._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    try:
        x = torch.zeros(2, 3, device="cpu")
        same, others = compare([x, x]), (x.int(), x[:1], x[:, :2], torch.zeros(2, 6, device="cpu")[:, :3])
        right = same(x, x + 1) and not any(same(x, y) or same(y, x) for y in others)
    except Exception:                            # noqa: B902 - whatever another version raises
        return None
    return compare if right else None


def anything(*others):
    """True: the comparison where the key has the forms of all arrays."""
    return True


def _comparison(arrays):
    """Function (*others) whether arrays at the same places have the forms of these."""
    at = [i for i, x in enumerate(arrays) if places[type(x)] is not forms[type(x)]]
    firsts = {id(arrays[i]): i for i in at[::-1]}               # torch compares no tensor twice
    own, twins = sorted(firsts.values()), [(i, firsts[id(arrays[i])]) for i in at if i not in firsts.values()]
    if not own:
        return anything
    same, pick = _comparer()([arrays[i] for i in own]), itemgetter(*own) if own[1:] else itemgetter(slice(own[0], own[0] + 1))

    def others_too(*others):
        for i, j in twins:
            if others[i] is not others[j]:
                return False
        return same(*pick(others))
    return same if len(own) == len(arrays) else others_too


def found(world, what, arrays, make):
    """The call that was prepared for arrays like these, or make().

    Args:
        what: tuple of all else that a call depends on. arrays: those of this rank, None where there is none.
        make: function () -> a call, which may raise; the call gets an attribute ``same``.
    """
    for kind in map(type, arrays):
        if kind not in places:
            _meet(kind)
    try:
        key = *what, *[places[type(x)](x) for x in arrays]
        call = world.cache.get(key)
    except (AttributeError, TypeError):          # no world, or something that cannot be a key: the check says which
        return make()
    if call is not None and call.same(*arrays):
        world.check()
        return call
    marks = tuple([forms[type(x)](x) for x in arrays])
    if None in marks or world.executor != "gpu":
        return make()
    call = world.cache.get((key, marks))         # arrays of many forms may follow each other at one place
    if call is None:
        call = make()
        remember(world.cache, (key, marks), call)
    else:
        world.check()
    call.same = _comparison(arrays)
    remember(world.cache, key, call)
    return call


def is_symmetric(x):
    """Whether x is a SymmetricArray, open or closed."""
    return hasattr(type(x), "peers_table")


def stream_source(world, stream, x):
    """A function that gives the pointer of the stream to launch on, now: the one given, the world's own, or the current one of
    the library that ``x`` belongs to."""
    if stream is None and not world.stream and type(x).__module__ == "torch" and x.is_cuda:
        raw = getattr(sys.modules["torch"]._C, "_cuda_getCurrentRawStream", None)
        if raw:                                     # ten times cheaper than the public object
            return partial(raw, x.get_device())
    if stream is None and not world.stream:
        return partial(world.stream_of, None, x)
    pointer = world.stream_of(stream, x)
    if stream is None:
        _check_current(world, pointer, x)
    return lambda: pointer


def _check_current(world, pointer, x):
    """Raise WorldError if torch works on another stream than this rank's own: nothing would order its kernels and ours."""
    if type(x).__module__ == "torch" and x.is_cuda:
        current = sys.modules["torch"].cuda.current_stream(x.device).cuda_stream
        if current != pointer:
            raise WorldError("stream: torch's current stream is not this rank's own. Several ranks in one process each work on a stream of "
                             "their own. Import torch before World.local(n), or pass stream=torch.cuda.current_stream().")


def empty_product(form, world, A, B, rows):
    """An uninitialised array of A's library for what this rank gets of A @ B; None where A and B are no matrices or world is none
    (the check says so)."""
    try:
        try:
            given, cols = A.shape[0], B.shape[1]
        except AttributeError:                   # an array that shows nothing but DLPack
            from ..runtime import arrays
            given, cols = arrays.describe(A, "A").shape[0], arrays.describe(B, "B").shape[1]
        shape = form.result(form.whole(given, world, rows), cols, world)
        if type(A).__module__ == "torch":
            return A.new_empty(shape)
        from ..runtime import arrays
        return arrays.empty_like_library(A, shape, arrays.describe(A, "A").dtype)
    except (AttributeError, IndexError, TypeError, PknumbaError):
        return None

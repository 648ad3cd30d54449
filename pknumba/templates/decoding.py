"""Calls of attention of one query for each sequence: heads that share keys become queries, keys are cut into parts."""

from .. import config as configs
from ..errors import LayoutError, PknumbaError, ShapeError
from ..tiles import ITEMSIZE
from .agreement import agreed, least_sms
from .attending import AttentionCall, _local, check, fitted, remembered
from .call import Matrix, Workspace
from .geometry import is_contiguous

#: Parts that the keys of a head are cut into at most, on a rank.
_MOST_PARTS = 32


def attend_decode(kernel, world, q, k, v, out, lse, config, stream, *, scale):
    """(O, lse) by ``kernel``. Arguments, result and errors are those of the public operator."""
    q4, o4, l3 = (_grouped(x, k) for x in (q, out, lse))
    o, sums = remembered(DecodeCall, kernel, world, q4, k, v, o4, l3, config, stream, scale=scale, shape=_shape(q))
    return (_reshaped(o, q.shape) if out is None else _local(out)), (_reshaped(sums, q.shape[:2]) if lse is None else _local(lse))


def _shape(x):
    return tuple(getattr(x, "shape", ()))


def _grouped(x, k):
    """(batch, heads, ...) seen as (batch, heads of k, those that share one, ...); x itself where it cannot be (the check says so)."""
    shape, pairs = _shape(x), (*_shape(k), 0, 0)[1]
    if len(shape) < 2 or not pairs or shape[1] % pairs:
        return x
    return _reshaped(_local(x), (shape[0], pairs, shape[1] // pairs, *shape[2:]))


def _reshaped(x, shape):
    """x with another shape, without a copy; x itself where its elements lie apart (the check says so)."""
    from ..runtime import DeviceArray, arrays
    try:
        info = arrays.describe(x)
    except PknumbaError:
        return x
    if not is_contiguous(info.shape, info.strides, ITEMSIZE.get(info.dtype, 1)):
        return x
    return x.reshape(shape) if hasattr(x, "reshape") else DeviceArray(info.pointer, shape, info.dtype, info.device, owner=x)


class DecodeCall(AttentionCall):
    """Attention of these queries over the keys of all ranks."""

    def _found(self, heads, config, scale, shape):
        """The Heads, once the ranks agree."""
        def checked():
            if len(shape) != 3:
                raise ShapeError(f"{self.name}: q has shape {shape}. It is (batch, heads, width), one query of every sequence. Reshape it.",
                                 shape=shape)
            k = _shape(heads.k)
            if len(k) == 4 and (not k[1] or shape[1] % k[1]):
                raise ShapeError(f"{self.name}: {shape[1]} query heads for {k[1]} heads of k and v. Each of these serves equally many. "
                                 "Repeat some.", heads=shape[1], pairs=k[1])
            for label, x, n in (("q", heads.q, 3), ("out", heads.out, 3), ("lse", heads.lse, 2)):
                if len(k) == 4 and len(_shape(x)) == n:
                    raise LayoutError(f"{self.name}: {label} has elements apart. It must be contiguous. Pass a copy.")
            return check(self.name, self.kernel, self.world, heads, config, False, scale, 0)
        if self.world.size == 1:
            return checked()
        return agreed(self.world, self.name, self.kernel, checked, lambda found: {
            "q": list(shape), "heads of k": found.k.shape[1], "dtype": found.q.dtype, "scale": repr(scale), "config": repr(config)})

    def _config(self, config, found, **_):
        """The configuration given, or the best one."""
        return fitted(config or configs.decode_config(found.q.shape[3]), found, False)

    def _numbers(self, cfg, found, scale, **_):
        """What ``g`` holds besides rank and world size. Ranks cut their keys into as many parts, however many they have."""
        numbers = super()._numbers(cfg, found, scale)
        merges, sms = numbers["lines"] * numbers["tiles"], least_sms(self.world)
        splits = max(1, min(_MOST_PARTS, sms // merges))
        computing = merges * splits
        chunk = max(1, -(-found.k.shape[2] // (splits * cfg.kv))) * cfg.kv
        return {**numbers, "computing": computing, "tasks": computing + merges, "blocks": min(computing, sms), "splits": splits,
                "chunk": chunk}

    def _workspace(self, cfg, numbers, found):
        """Counters, and memory for two calls' parts and their log-sum-exp."""
        key = "workspace", self.kernel, cfg, tuple(found.q.shape), numbers["splits"], self.stream_key
        if key not in self.world.cache:
            made = Workspace(self.kernel, self.world, cfg, numbers["lines"] * numbers["tiles"])
            rows, (_, _, queries, d) = 2 * numbers["lines"] * numbers["splits"], found.q.shape
            made.memory = self.world.symmetric((rows, queries, d), "float32"), self.world.symmetric((rows, queries), "float32")
            self.world.cache[key], self.first = made, True
        return self.world.cache[key]

    def _all_matrices(self, found, workspace):
        """The rank's own arrays, and parts of all ranks."""
        own, (parts, sums) = super()._all_matrices(found, workspace), workspace.memory
        more = {"lse": own["L"], "parts": Matrix(arrays=parts.arrays), "L": Matrix(arrays=sums.arrays)} \
            if self.world.executor == "interpreter" else self._on_device(own, parts, sums)
        return {**own, **more}

    @staticmethod
    def _on_device(own, parts, sums):
        (rows, queries, d), (step, pitch, _) = parts.shape, parts.strides
        whole = Matrix(parts.pointer, queries, d, pitch, "float32", outer=((rows, step),),
                       targets=tuple((pointer, queries) for pointer in parts.pointers))
        return {"lse": own["L"], "parts": whole, "L": Matrix(sums.pointer, rows, queries, sums.pitch, "float32", sums.peers_table)}


__all__ = ["attend_decode", "DecodeCall"]

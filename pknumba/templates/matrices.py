"""Calls of kernels that multiply matrices: what an array must be, padded copies where the copy engine needs them, and a
cache that makes a repeated call cheap."""

from .. import config as configs
from ..errors import ContractError, PknumbaError
from ..tiles import ITEMSIZE
from .arguments import check, check_world
from .call import Matrix, Workspace, check_sms, prepare
from .fast import empty_product, is_symmetric, signature, stream_source

_ALIGN = 16         # bytes: where the rows of a tensor map may start
_REMEMBERED = 4096  # calls


def multiply(kernel, world, A, B, out, config, stream):
    """C = A @ B by ``kernel``, in ``out`` or a new array. Arguments, result and errors are those of the public operators."""
    if out is None:
        out = empty_product(A, B)
    marks = signature(A, B, out)
    key = (kernel, *marks, config, stream)
    try:
        call = world.cache.get(key) if None not in marks else None
    except (AttributeError, TypeError):          # no world, no config: the check says which; or a stream that cannot be a key
        call = key = None
    if call is not None:
        world.check()
    else:
        call = MultiplyCall(kernel, world, A, B, out, config, stream)
        if key and None not in marks and world.executor == "gpu":
            _remember(world.cache, key, call)
    call.run(call.stream())
    return out.local if call.local else out


def _remember(cache, key, call):
    """Keep a call; forget the oldest half in programs that never use an array twice."""
    calls = [k for k, v in cache.items() if isinstance(v, MultiplyCall)] if len(cache) >= _REMEMBERED else ()
    for old in calls[:_REMEMBERED // 2]:
        del cache[old]
    cache[key] = call


class MultiplyCall:
    """A product of matrices with these arrays: checked, agreed with the other ranks, and packed."""

    def __init__(self, kernel, world, A, B, out, config, stream):
        self.name, self.kernel, self.world = kernel.__name__, kernel, world
        check_world(self.name, world)
        self.before, self.after, self.scratch, self.local = [], [], [], is_symmetric(out)
        a, b, c, transposed, _ = self._agreed(lambda: check(self.name, kernel, world, A, B, out, config, stream), config)
        self.stream = stream_source(world, stream, A)
        (m, k), n = a.shape, b.shape[1]
        self.launch = None
        if m == 0 or n == 0:
            return
        cfg = self._config(config, m, n, max(k, 1), a.dtype).replace(b_transposed=transposed or k == 0)
        cfg.check()
        numbers = {"grid": (-(-m // cfg.tile_m), -(-n // cfg.tile_n)), "k_tiles": -(-max(k, 1) // cfg.tile_k)}
        numbers["tasks"] = numbers["grid"][0] * numbers["grid"][1]
        numbers = {name: numbers[name] for name in kernel.numbers}
        key = ("workspace", kernel, cfg, m, n, k, stream if stream is None else self.stream())
        workspace, first = world.cache.get(key), key not in world.cache
        if first:
            workspace = world.cache[key] = Workspace(kernel, world, cfg, numbers["tasks"])
        c_matrix = self._symmetric(out, c) if "C" in kernel.symmetric else self._result(out, c)
        matrices = {"A": self._operand(a), "B": self._operand(b, cfg.b_transposed), "C": c_matrix}
        self.launch = prepare(kernel, world, cfg, matrices, numbers, workspace)
        if first and kernel.communicates() and world.size > 1:
            world.barrier()                      # compiling and loading may take seconds, and loading may wait for kernels that spin
        if not self.before and not self.after:
            self.run = self.launch.fire          # the common case, without a loop

    def run(self, stream):
        """Copies in, the kernel, copies out, on that stream."""
        for step in self.before:
            step(stream)
        if self.launch is not None:
            self.launch.fire(stream)
        for step in self.after:
            step(stream)

    # ---- agreement
    def _agreed(self, check, config):
        """What check() gives, once every rank's check has passed on the same arguments. A communicating kernel only."""
        kernel, world = self.kernel, self.world
        if not kernel.communicates() or world.size == 1:
            return check()
        found = problem = None
        try:
            found = check()
            terms = {"A.shape": list(found.a.shape), "B.shape": list(found.b.shape), "dtype": found.a.dtype,
                     "config": repr(config), "layout of B": "columns" if found.transposed else "rows",
                     "out": f"symmetric array {found.symmetric}" if found.symmetric else "no symmetric array"}
            mark = "agreed", kernel, repr(terms)
            if mark in world.cache:
                return found
        except Exception as error:               # noqa: B902 - the other ranks are told whatever it is
            problem = error
        for rank, said in enumerate(world.allgather(problem and (type(problem), str(problem)))):
            if said and not problem:
                kind = said[0] if issubclass(said[0], PknumbaError) else ContractError
                raise kind(f"{self.name}: rank {rank} cannot make this call. All ranks call with arguments that fit. It says: "
                           f"{said[1]}", rank=rank)
        if problem:
            raise problem
        world.agree(self.name, terms)
        world.cache[mark] = True
        return found

    def _config(self, config, m, n, k, dtype):
        """The configuration given, or the best one; the same on every rank, whatever its device."""
        kernel = self.kernel
        sms = self._least_sms() if kernel.communicates() else self.world.num_sms
        if config is None:
            config = configs.best(m, n, k, sms, kernel.config())
        check_sms(kernel, config, sms)
        return config.replace(dtype=dtype)

    def _least_sms(self):
        """SMs of the rank that has fewest: every rank must choose the same configuration."""
        if "least SMs" not in self.world.cache:
            self.world.cache["least SMs"] = min(self.world.allgather(self.world.num_sms))
        return self.world.cache["least SMs"]

    # ---- operands
    def _operand(self, x, transposed=False):
        """A row-major matrix as the copy engine can read it; the transpose of one if ``transposed``."""
        rows, cols = x.shape[::-1] if transposed else x.shape
        if 0 in x.shape:
            return self._zeros(rows, 8, x.dtype)
        if self.world.executor == "interpreter":
            return self._local(x.owner.T if transposed else x.owner)
        return self._readable(x, rows, cols, x.strides[1 if transposed else 0])

    def _readable(self, x, rows, cols, pitch):
        width = cols * ITEMSIZE[x.dtype]
        if rows == 1:
            pitch = _padded(width)
        if x.pointer % _ALIGN == 0 and pitch % _ALIGN == 0:
            return Matrix(x.pointer, rows, cols, pitch, x.dtype)
        from ..runtime import driver
        padded = self._scratch(rows * _padded(width))
        self.before.append(lambda s: driver.copy_2d(padded, _padded(width), x.pointer, pitch, width, rows, s))
        return Matrix(padded, rows, cols, _padded(width), x.dtype)

    def _scratch(self, nbytes):
        from ..runtime import DeviceArray
        memory = DeviceArray.empty(max(nbytes // 4, 1), "uint32", self.world.device)
        self.scratch.append(memory)
        return memory.pointer

    def _zeros(self, rows, cols, dtype):
        if self.world.executor == "interpreter":
            import numpy as np
            from ..runtime import dtypes
            return self._local(np.zeros((rows, cols), dtypes.numpy_dtype(dtype)))
        from ..runtime import driver
        nbytes = rows * cols * ITEMSIZE[dtype]
        memory = self._scratch(nbytes)
        self.before.append(lambda s: driver.memset(memory, 0, nbytes, s))
        return Matrix(memory, rows, cols, cols * ITEMSIZE[dtype], dtype)

    def _local(self, array):
        return Matrix(arrays=[array if r == self.world.rank else None for r in range(self.world.size)])

    def _result(self, out, c):
        """C of one rank, or padded memory that is copied to it afterwards."""
        if self.world.executor == "interpreter":
            return self._local(c.owner)
        (rows, cols), width = c.shape, c.shape[1] * ITEMSIZE[c.dtype]
        pitch = _padded(width) if rows == 1 else c.strides[0]
        if c.pointer % _ALIGN == 0 and pitch % _ALIGN == 0:
            return Matrix(c.pointer, rows, cols, pitch, c.dtype)
        from ..runtime import driver
        padded = self._scratch(rows * _padded(width))
        self.after.append(lambda s: driver.copy_2d(c.pointer, c.strides[0], padded, _padded(width), width, rows, s))
        return Matrix(padded, rows, cols, _padded(width), c.dtype)

    def _symmetric(self, out, c):
        """C in symmetric memory: ``out`` itself, or memory of the world that is copied to it afterwards."""
        array = out
        if not self.local:
            key = ("result", tuple(c.shape), c.dtype)
            array = self.world.cache.get(key)
            if array is None:
                array = self.world.cache[key] = self.world.symmetric(c.shape, c.dtype)
            self.after.append(self._copy_back(array, c))
        if self.world.executor == "interpreter":
            return Matrix(arrays=[array.peer(r) for r in range(self.world.size)])
        return Matrix(array.pointer, c.shape[0], c.shape[1], array.pitch, c.dtype, array.peers_table)

    def _copy_back(self, array, c):
        if self.world.executor == "interpreter":
            def copy(stream):
                c.owner[...] = array.local
            return copy
        from ..runtime import driver
        width = c.shape[1] * ITEMSIZE[c.dtype]
        return lambda s: driver.copy_2d(c.pointer, c.strides[0], array.pointer, array.pitch, width, c.shape[0], s)


def _padded(width):
    return -(-width // _ALIGN) * _ALIGN


__all__ = ["multiply", "MultiplyCall"]

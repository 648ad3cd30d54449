"""Calls of kernels that multiply matrices: what an array must be, padded copies where the copy engine needs them, and a
cache that makes a repeated call cheap."""

from .. import config as configs
from ..errors import ContractError, DTypeError, LayoutError, PknumbaError, ShapeError, WorldError
from ..tiles import DTYPES, ITEMSIZE
from .call import Matrix, Workspace, prepare
from .fast import empty_product, fingerprint, stream_source

_ALIGN = 16         # bytes: where the rows of a tensor map may start
_REMEMBERED = 4096  # calls


def multiply(kernel, world, A, B, out, config, stream):
    """C = A @ B by ``kernel``, in ``out`` or a new array. Arguments, result and errors are those of the public operators."""
    if out is None:
        out = empty_product(A, B)
    marks = fingerprint(A), fingerprint(B), fingerprint(out)
    key = (kernel, *marks, config, stream)
    try:
        call = world.cache.get(key) if None not in marks else None
    except (AttributeError, TypeError):          # no world, no config: the check says which
        call = None
    if call is not None:
        world.check()
    else:
        call = MultiplyCall(kernel, world, A, B, out, config, stream)
        if None not in marks and world.executor == "gpu":
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
        self.name, self.world = kernel.__name__, world
        if not hasattr(world, "executor"):
            raise ContractError(f"{self.name}: {type(world).__name__} is no World. Pass World.local() or World.mpi() first.")
        world.check()
        self.before, self.after, self.scratch, self.local = [], [], [], hasattr(out, "peers_table")
        self.stream = stream_source(world, stream, A)
        a, b, c = self._agreed(kernel, lambda: self._checked(A, B, out, config, kernel), config)
        (m, k), n = a.shape, b.shape[1]
        self.launch = None
        if m == 0 or n == 0:
            return
        cfg = self._config(kernel, config, m, n, max(k, 1), a.dtype)
        a_matrix, b_matrix, transposed = self._operand(a, "A", k), *self._right(b, k)
        cfg = cfg.replace(b_transposed=transposed)
        cfg.check()
        numbers = {"grid": (-(-m // cfg.tile_m), -(-n // cfg.tile_n)), "k_tiles": -(-max(k, 1) // cfg.tile_k)}
        numbers["tasks"] = numbers["grid"][0] * numbers["grid"][1]
        numbers = {name: numbers[name] for name in kernel.numbers}
        key = ("workspace", kernel, cfg, m, n, k, stream)
        workspace, first = world.cache.get(key), key not in world.cache
        if first:
            workspace = world.cache[key] = Workspace(kernel, world, cfg, numbers["tasks"])
        c_matrix = self._symmetric(out, c) if "C" in kernel.symmetric else self._result(out, c)
        self.launch = prepare(kernel, world, cfg, {"A": a_matrix, "B": b_matrix, "C": c_matrix}, numbers, workspace)
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

    # ---- checks
    def _checked(self, A, B, out, config, kernel):
        from ..runtime import arrays
        if config is not None and not isinstance(config, kernel.config):
            raise ContractError(f"{self.name}: config is a {type(config).__name__}. Pass a {kernel.config.__name__} or None.")
        a, b = arrays.describe(A, "A"), arrays.describe(B, "B")
        for name, x in (("A", a), ("B", b)):
            self._home(name, x)
            if len(x.shape) != 2:
                raise ShapeError(f"{self.name}: {name} has shape {tuple(x.shape)}. It must be a matrix. Reshape it to two dimensions.", shape=tuple(x.shape))
            if x.dtype not in DTYPES:
                raise DTypeError(f"{self.name}: {name} is {x.dtype}. It must be {' or '.join(DTYPES)}. Convert it first.", dtype=x.dtype)
        if a.shape[1] != b.shape[0]:
            raise ShapeError(f"{self.name}: A {tuple(a.shape)} and B {tuple(b.shape)} do not multiply. A's columns must equal B's rows.")
        if a.dtype != b.dtype:
            raise DTypeError(f"{self.name}: A is {a.dtype} and B is {b.dtype}. Both must have one dtype. Convert one.")
        c = arrays.describe(getattr(out, "local", out), "out")
        self._home("out", c)
        if tuple(c.shape) != (a.shape[0], b.shape[1]):
            raise ShapeError(f"{self.name}: out has shape {tuple(c.shape)}. The product has {(a.shape[0], b.shape[1])}.")
        if c.dtype != a.dtype:
            raise DTypeError(f"{self.name}: out is {c.dtype} and A is {a.dtype}. The result has A's dtype.")
        if c.shape[0] and c.shape[1] > 1 and c.strides[1] != ITEMSIZE[c.dtype]:
            raise LayoutError(f"{self.name}: out has strides {tuple(c.strides)}. Its rows must be contiguous. Pass a row-major array.")
        return a, b, c

    def _home(self, name, x):
        wanted = "cpu" if self.world.executor == "interpreter" else self.world.device
        if x.device != wanted:
            raise WorldError(f"{self.name}: {name} lies on {_place(x.device)}, the world works on {_place(wanted)}. "
                             "Arrays must lie where the kernel runs. Use world.asarray(x) or another executor.")

    def _agreed(self, kernel, check, config):
        """What check() gives, once every rank's check has passed on the same arguments. A communicating kernel only."""
        if not kernel.communicates() or self.world.size == 1:
            return check()
        try:
            operands, problem = check(), None
        except PknumbaError as error:
            operands, problem = None, error
        mark = ("agreed", kernel, operands and [(x.shape, x.dtype) for x in operands].__repr__(), config)
        if mark in self.world.cache:
            return operands
        for rank, other in enumerate(self.world.allgather(problem and (type(problem), str(problem)))):
            if other and not problem:
                raise other[0](f"{self.name}: rank {rank} cannot make this call. All ranks call with arguments that fit. It says: {other[1]}")
        if problem:
            raise problem
        a, b, _ = operands
        self.world.agree(self.name, {"A.shape": list(a.shape), "B.shape": list(b.shape), "dtype": a.dtype, "config": repr(config)})
        self.world.cache[mark] = True
        return operands

    def _config(self, kernel, config, m, n, k, dtype):
        if config is None:
            sms = self._least_sms() if kernel.communicates() else self.world.num_sms
            base = kernel.config()
            comm = min(base.comm_sms, max(1, sms // 8)) if kernel.communicates() else 0
            config = configs.best(m, n, k, sms, base.replace(comm_sms=comm) if comm else base, comm)
        return config.replace(dtype=dtype)

    def _least_sms(self):
        """SMs of the rank that has fewest: every rank must choose the same configuration."""
        if "least SMs" not in self.world.cache:
            self.world.cache["least SMs"] = min(self.world.allgather(self.world.num_sms))
        return self.world.cache["least SMs"]

    # ---- operands
    def _operand(self, x, name, k):
        """A row-major matrix as the copy engine can read it."""
        rows, cols = x.shape
        if k == 0:
            return self._zeros(rows, 8, x.dtype)
        if cols > 1 and x.strides[1] != ITEMSIZE[x.dtype]:
            raise LayoutError(f"{self.name}: {name} has strides {tuple(x.strides)}. Its rows must be contiguous. Pass a row-major copy.")
        return self._readable(x, rows, cols, x.strides[0])

    def _right(self, x, k):
        """(matrix, transposed): B (K, N) as it is, or the (N, K) array whose transpose it is."""
        (rows, cols), size = x.shape, ITEMSIZE[x.dtype]
        if k == 0:
            return self._zeros(cols, 8, x.dtype), True
        if cols == 1 or x.strides[1] == size:
            return self._readable(x, rows, cols, x.strides[0]), False
        if rows == 1 or x.strides[0] == size:
            arrays = None if x.device != "cpu" else x.owner.T
            return self._readable(x._replace(owner=arrays if arrays is not None else x.owner), cols, rows, x.strides[1]), True
        raise LayoutError(f"{self.name}: B has strides {tuple(x.strides)}. Its rows or its columns must be contiguous. Pass a row-major copy.")

    def _readable(self, x, rows, cols, pitch):
        if self.world.executor == "interpreter":
            return self._local(x.owner)
        width = cols * ITEMSIZE[x.dtype]
        if rows == 1:
            pitch = _padded(width)
        if x.pointer % _ALIGN == 0 and pitch % _ALIGN == 0 and pitch >= width:
            return Matrix(x.pointer, rows, cols, pitch, x.dtype)
        if pitch < width:
            raise LayoutError(f"{self.name}: rows of {width} bytes are {pitch} bytes apart. Rows must not overlap. Pass a row-major copy.")
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
        if c.pointer % _ALIGN == 0 and pitch % _ALIGN == 0 and pitch >= width:
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
        elif array.world is not self.world:
            raise WorldError(f"{self.name}: out belongs to another world. It must be symmetric memory of the world that is passed.")
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


def _place(device):
    return "the host" if device == "cpu" else f"device {device}"


__all__ = ["multiply", "MultiplyCall"]

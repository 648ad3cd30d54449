"""Calls of kernels that multiply matrices: what an array must be, padded copies where the copy engine needs them, and a
cache that makes a repeated call cheap."""

from dataclasses import fields as fields_of
from functools import partial

from .. import config as configs
from ..lowering.variant import debug
from ..tiles import ITEMSIZE
from .agreement import agreed, least_sms
from .arguments import check, check_world
from .call import Matrix, Steps, Workspace, check_sms, prepare
from .fast import empty_product, found, is_symmetric, places, stream_source
from .kept import launches
from .repeated import NEWEST

_ALIGN = 16         # bytes: where the rows of a tensor map may start
_LINE = 128         # of L2: rows that start on one are loaded fastest
_SECTOR = 32        # of a line, which is asked for by itself


def multiply(kernel, world, A, B, out, config, stream, rows=None):
    """C = A @ B by ``kernel``, in ``out`` or a new array. Arguments, result and errors are those of the public operators.

    Args:
        rows: of the whole product, where A holds only this rank's; None: every rank has as many.
    """
    if out is None and not getattr(world, "spans", False):
        out = empty_product(kernel.form, world, A, B, rows)
    try:                                         # ``found`` in short, for what is called again and again
        call = world.cache[kernel, config, stream, rows, places[type(A)](A), places[type(B)](B), places[type(out)](out)]
        known = call.same(A, B, out)
    except (AttributeError, KeyError, TypeError):
        known = False
    if known:
        if world.alarm.value:
            world.check()
    elif getattr(world, "spans", False):
        return _over_nodes(kernel, world, A, B, out, config, stream, rows)
    else:
        call = found(world, (kernel, config, stream, rows), (A, B, out),
                     partial(MultiplyCall, kernel, world, A, B, out, config, stream, rows))
    world.cache[NEWEST] = call
    stream = call.stream()
    launch = call.ready.get(stream)
    if launch is None:
        call.run(stream)
    elif code := launch():
        call.refused(launch, code)
    return out.local if call.local else out


def _over_nodes(kernel, world, A, B, out, config, stream, rows):
    if kernel.communicates():
        from .. import nodes
        return nodes.multiply(kernel, world, A, B, out, config, stream, rows)
    return multiply(kernel, world.node, A, B, out.local if is_symmetric(out) else out, config, stream, rows)


class MultiplyCall(Steps):
    """A product of matrices with these arrays: checked, agreed with the other ranks, and packed."""

    def __init__(self, kernel, world, A, B, out, config, stream, rows=None):
        self.name, self.kernel, self.world = kernel.title or kernel.__name__, kernel, world
        check_world(self.name, world)
        self.before, self.after, self.scratch, self.local = [], [], [], is_symmetric(out)
        a, b, c, m, transposed, _ = self._agreed(lambda: check(self.name, kernel, world, A, B, out, config, stream, rows), config)
        self.stream = stream_source(world, stream, A)
        k, n = b.shape
        self.launch = None
        if m == 0 or n == 0:
            return
        lines = _lines(a), _lines(b, transposed)
        self.transposed = transposed or k == 0
        cfg = self._config(config, m, n, max(k, 1), a.dtype, lines)
        cfg.check()
        kernel = self.kernel = self.kernel.for_config(cfg)      # _config may have chosen a simpler one
        sms = self._sms()
        numbers = kernel.form.numbers(m, n, max(k, 1), cfg, world, sms)
        numbers = {name: numbers[name] for name in kernel.numbers}
        self.stream_key = stream if stream is None else self.stream()
        workspace, first = (None, False) if kernel.private else self._workspace(cfg, numbers, m, n, k)
        apart = kernel.form.apart(n, cfg, world)
        matrices = {kernel.form.operand: self._operand(a), "B": self._apart(b, apart) if apart else self._operand(b, cfg.b_transposed),
                    **kernel.form.matrices(workspace and workspace.memory, m, n, world)}
        result = self._symmetric(out, c, m, n) if kernel.shares_result() else self._result(out, c)
        matrices["out" if "out" in kernel.tensors else "C"] = result
        if debug() and kernel.shares_result() and matrices["C"].pointer and (matrices["C"].rows, matrices["C"].cols) == tuple(c.shape):
            from .debug import watched
            watched(self, matrices["C"])
        prepared = kernel, world, cfg, matrices, numbers
        self.launch = launches(*prepared, (m, n, k), self.stream(), stream is None) if kernel.private else prepare(*prepared, workspace)
        if first and kernel.communicates() and world.size > 1:
            world.barrier()                      # compiling and loading may take seconds, and loading may wait for kernels that spin
        self.shorten()

    def _workspace(self, cfg, numbers, m, n, k):
        """(what calls of one shape keep between them, whether this is the first of them)."""
        kernel, world, key = self.kernel, self.world, ("workspace", self.kernel, cfg, m, n, k, self.stream_key)
        first = key not in world.cache
        if first:
            made = world.cache[key] = Workspace(kernel, world, cfg, kernel.form.signals(numbers, world))
            made.memory = kernel.form.memory(world, m, n, max(k, 1), cfg.dtype)
            made.memory = kernel.form.room(cfg, numbers, world) if made.memory is None else made.memory
        return world.cache[key], first

    # ---- agreement
    def _agreed(self, checked, config):
        """What checked() gives; for a kernel that communicates, once the ranks agree."""
        if not self.kernel.communicates() or self.world.size == 1:
            return checked()
        return agreed(self.world, self.name, self.kernel, checked, lambda found: {
            "A.shape": [found.m, found.a.shape[1]], "B.shape": list(found.b.shape), "dtype": found.a.dtype, "config": repr(config),
            "results of a tuner": None if config else self._tuned(configs.tuned_state, found.m, *found.b.shape[::-1], found.a.dtype),
            "layout of B": "columns" if found.transposed else "rows", "kernel": self.kernel.__name__,
            "out": f"symmetric array {found.symmetric}" if found.symmetric else "no symmetric array"})

    def _config(self, config, m, n, k, dtype, lines=(1, 1)):
        """The configuration given, or the best one; the same on every rank, whatever its device and wherever its arrays lie."""
        kernel = self.kernel
        if kernel.communicates() or self.world.executor == "interpreter":
            lines = 1, 1
        sms = self._sms()
        if config is not None:
            check_sms(kernel, config, sms)
        if self.world.size == 1 and kernel.alone:
            kernel = self.kernel = kernel.alone
            config = config and kernel.config(**{f.name: getattr(config, f.name) for f in fields_of(kernel.config)})
        fields = None if config else self._tuned(partial(configs.tuned, sms=sms, transposed=self.transposed), m, n, k, dtype)
        if fields:
            config = kernel.defaults().replace(**fields)
        elif config is None:
            config = configs.best(m, n, k, sms, kernel.defaults(), self.world.size, lines, kernel.plain())
            check_sms(kernel, config, sms)
        return config.of(dtype, self.transposed)

    def _tuned(self, ask, m, n, k, dtype):
        """What a tuner found for the public function on this card: ``ask`` is a function of ``config.kept``."""
        kernel = self.kernel.alone if self.world.size == 1 and self.kernel.alone else self.kernel
        name = "".join("_" + c.lower() if c.isupper() else c for c in kernel.__name__).strip("_")
        return ask(op=name, card=getattr(self.world, "card", None), world=self.world.size, shape=(m, n, k), dtype=dtype)

    def _sms(self):
        """SMs to use: those of the rank that has fewest where every rank must choose the same configuration."""
        return least_sms(self.world) if self.kernel.communicates() else self.world.num_sms

    # ---- operands
    def _operand(self, x, transposed=False):
        """A row-major matrix as the copy engine can read it; the transpose of one if ``transposed``."""
        rows, cols = x.shape[::-1] if transposed else x.shape
        if 0 in x.shape:
            return self._zeros(max(rows, 1), 8, x.dtype)
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
        self.before.append(driver.copier_2d(padded, _padded(width), x.pointer, pitch, width, rows))
        return Matrix(padded, rows, cols, _padded(width), x.dtype)

    def _apart(self, x, parts):
        """Row-major x with parts of its columns where the copy engine can begin. parts: [(first column, there, columns)]."""
        (rows, _), size, total = x.shape, ITEMSIZE[x.dtype], sum(parts[-1][1:])
        if self.world.executor == "interpreter":
            import numpy as np
            padded = np.zeros((rows, total), x.owner.dtype)

            def copy(stream):
                for first, there, cols in parts:
                    padded[:, there:there + cols] = x.owner[:, first:first + cols]
            self.before.append(copy)
            return self._local(padded)
        from ..runtime import driver
        pitch, given = _padded(total * size), x.strides[0] if rows > 1 else x.shape[1] * size
        padded = self._scratch(rows * pitch)
        for first, there, cols in parts:
            self.before.append(driver.copier_2d(padded + there * size, pitch, x.pointer + first * size, given, cols * size, rows))
        return Matrix(padded, rows, total, pitch, x.dtype)

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
        """C of one rank, or padded memory that is copied to it afterwards.

        The copy engine writes whole 16-byte pieces, also the one that the last column cuts (seen on an H200): rows that do not
        end on one must not lie beside anything else.
        """
        if self.world.executor == "interpreter":
            return self._local(c.owner)
        (rows, cols), width = c.shape, c.shape[1] * ITEMSIZE[c.dtype]
        if not rows:                                # a share without any: the copy engine knows no such array; one that nobody reads
            return Matrix(self._scratch(_padded(width)), 1, cols, _padded(width), c.dtype)
        if debug():
            from .debug import guarded
            return guarded(self, c)
        pitch = _padded(width) if rows == 1 else c.strides[0]
        if c.pointer % _ALIGN == 0 and pitch % _ALIGN == 0 and width % _ALIGN == 0:
            return Matrix(c.pointer, rows, cols, pitch, c.dtype)
        from ..runtime import driver
        padded = self._scratch(rows * _padded(width))
        self.after.append(driver.copier_2d(c.pointer, c.strides[0], padded, _padded(width), width, rows))
        return Matrix(padded, rows, cols, _padded(width), c.dtype)

    def _symmetric(self, out, c, m, n):
        """C in symmetric memory: ``out`` itself, or memory of the world that is copied to it afterwards."""
        form, array = self.kernel.form, out
        direct = self.local and form.direct(self.world, m, n)
        if not direct:
            key = "result", form.shape(self.world, m, n), c.dtype, self.stream_key
            array = self.world.cache.get(key)
            if array is None:
                array = self.world.cache[key] = self.world.symmetric(key[1], c.dtype)
            self.after += [self._copy_back(array, c, *part) for part in form.parts(self.world, m, n)]
        return form.shared(self.world, array, m, n, direct)

    def _copy_back(self, array, c, there, here, extent):
        """Copies extent (rows, columns) of the array from (row, column) ``there`` to ``here`` in C."""
        if self.world.executor == "interpreter":
            (i, j), (row, col), (rows, cols) = there, here, extent

            def copy(stream):
                c.owner[row:row + rows, col:col + cols] = array.local[i:i + rows, j:j + cols]
            return copy
        from ..runtime import driver
        size = ITEMSIZE[c.dtype]
        target, source = c.pointer + here[0] * c.strides[0] + here[1] * size, array.pointer + there[0] * array.pitch + there[1] * size
        return driver.copier_2d(target, c.strides[0], source, array.pitch, extent[1] * size, extent[0])


def _padded(width):
    return -(-width // _LINE) * _LINE


def _lines(x, transposed=False):
    """Lines in which 64 elements of a row lie, once rows that no tensor map can read have been copied. Rows that begin on a sector take as
    few sectors as those that begin on a line, and count as such."""
    start = x.pointer | x.strides[1 if transposed else 0]
    return 2 if start % _SECTOR and start % _ALIGN == 0 else 1


__all__ = ["multiply", "MultiplyCall"]

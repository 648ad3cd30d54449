"""A machine for the inline PTX of lowerings: 128 lanes as NumPy vectors, bytes of shared and global memory.

It knows the instructions that lowerings of tiles and reductions write, from the PTX manual, and nothing of pknumba: what
it computes is what the text says.
"""

import re

import ml_dtypes
import numpy as np

LANES = 128
WARP = np.arange(LANES) // 32 * 32
_FLOAT16 = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
_REDUCE = {"add": np.add, "min": np.minimum, "max": np.maximum}


def bits(x):
    """A float32 or 32-bit register as uint32."""
    x = np.broadcast_to(np.asarray(x), LANES)
    return np.ascontiguousarray(x).view(np.uint32) if x.dtype.itemsize == 4 else x.astype(np.uint32)


def floats(x):
    return bits(x).view(np.float32)


def half(x, kind):
    """The low 16 bits of a register as float32."""
    return (bits(x) & 0xffff).astype(np.uint16).view(_FLOAT16[kind]).astype(np.float32)


def rounded(x, kind):
    """float32 as the 16 bits of that kind."""
    with np.errstate(over="ignore"):
        return floats(x).astype(_FLOAT16[kind]).view(np.uint16).astype(np.uint32)


class Memory:
    """Bytes by address, in segments; ``multicast``: {address: addresses of every rank} for whole segments."""

    def __init__(self):
        self.segments, self.multicast, self.log = {}, {}, []

    def put(self, address, data):
        self.segments[address] = np.frombuffer(bytearray(data), np.uint8)

    def at(self, address, count):
        for start, data in self.segments.items():
            if start <= address and address + count <= start + len(data):
                return data[address - start:address - start + count]
        raise AssertionError(f"access of {count} bytes at {address:#x}, outside of every segment")

    def all_ranks(self, address):
        """The addresses that a multicast address stands for."""
        for start, targets in self.multicast.items():
            if start <= address < start + len(self.segments[targets[0]]):
                return [t + address - start for t in targets]
        raise AssertionError(f"{address:#x} is no multicast address")


class Machine:
    """Runs inline PTX; all lanes jump, and forward. ``shared`` and ``memory`` are its state; ``executed`` counts instructions by name."""

    def __init__(self, shared_bytes=0):
        self.shared, self.memory, self.executed = np.zeros(shared_bytes, np.uint8), Memory(), {}

    def run(self, text, operands, active):
        """Run a text. operands: values of $0, $1, ... (results None). Returns the registers written to $n, as {n: value}."""
        registers, target = {f"${i}": v for i, v in enumerate(operands) if v is not None}, None
        for line in self._instructions(text):
            label, guard, name, args = re.fullmatch(r"(?:(\w+):(?!:)\s*)?(?:@(\w+) )?([\w.:]*)\s*(.*)", line, re.S).groups()
            target = None if label == target else target
            if target or name in ("", ".reg"):
                continue
            mask = active & registers[guard].astype(bool) if guard else active
            self.executed[name] = self.executed.get(name, 0) + 1
            if name == "bra":
                assert (mask == active).all() or not mask.any(), f"{line}: some lanes jump"
                target = args if mask.any() else None
            else:
                self._execute(name, _split(args), registers, mask)
        return {int(k[1:]): v for k, v in registers.items() if k[0] == "$"}

    @staticmethod
    def _instructions(text):
        text = re.sub(r"^{(.*)}[^}]*$", r"\1", " ".join(text.split()))
        return [t.strip() for t in text.split(";") if t.strip()]

    def _execute(self, name, args, registers, mask):
        for pattern, function in _TABLE:
            match = re.fullmatch(pattern, name)
            if match:
                return function(self, match, args, registers, mask)
        raise AssertionError(f"the machine does not know {name} {args}")

    # ---- memory, one lane after the other
    def lanes(self, mask):
        return np.flatnonzero(mask)

    def place(self, space, address, count):
        return self.shared[address:address + count] if space == "shared" else self.memory.at(address, count)


def _split(args):
    """Operands; vectors as lists."""
    parts, depth, word = [], 0, ""
    for c in args + ",":
        depth += (c in "{[") - (c in "}]")
        if c == "," and depth == 0:
            word = word.strip()
            parts.append([w.strip() for w in word[1:-1].split(",")] if word.startswith("{") else word)
            word = ""
        else:
            word += c
    return [p for p in parts if p != ""]


def _value(registers, word):
    """A register, a number or a special register, as 128 values."""
    if word in ("%tid.x", "%laneid"):
        return np.arange(LANES, dtype=np.uint32) % (LANES if word == "%tid.x" else 32)
    if re.fullmatch(r"-?\d+", word):
        return np.full(LANES, int(word) & 0xffffffff, np.uint32)
    if word.startswith("0f"):
        return np.full(LANES, int(word[2:], 16), np.uint32).view(np.float32)
    return np.broadcast_to(registers[word], LANES)


def _set(registers, word, value, mask):
    value = np.broadcast_to(np.asarray(value), LANES)
    old = registers.get(word)
    registers[word] = value.copy() if old is None or mask.all() else np.where(mask, value, np.broadcast_to(old, LANES).view(value.dtype))


def _address(registers, word):
    base, _, offset = word.strip("[]").partition("+")
    return _value(registers, base.strip()).astype(np.uint64) + np.uint64(int(offset or 0))


def _mov(m, match, args, registers, mask):
    target, source = args
    if isinstance(target, list):
        value, width = _value(registers, source), 32 if match[1] == "64" else 16
        for i, part in enumerate(target):
            _set(registers, part, (value.astype(np.uint64) >> np.uint64(i * width) & np.uint64((1 << width) - 1)).astype(np.uint32), mask)
    elif isinstance(source, list):
        low, high = (bits(_value(registers, s)).astype(np.uint64) for s in source)
        joined = low | high << np.uint64(32 if match[1] == "64" else 16)
        _set(registers, target, joined if match[1] == "64" else joined.astype(np.uint32), mask)
    else:
        _set(registers, target, _value(registers, source), mask)


def _binary(function, view):
    def execute(m, match, args, registers, mask):
        with np.errstate(all="ignore"):
            _set(registers, args[0], function(*(view(_value(registers, a)) for a in args[1:])), mask)
    return execute


def _wide_add(m, match, args, registers, mask):
    dtype = np.uint64 if match[1] == "64" else np.uint32
    x, y = (_value(registers, a).astype(dtype) for a in args[1:])
    _set(registers, args[0], (x + y).astype(dtype), mask)


def _setp(m, match, args, registers, mask):
    x, y = (bits(_value(registers, a)).view(np.int32) for a in args[1:])
    _set(registers, args[0], {"ne": x != y, "gt": x > y}[match[1]], mask)


def _round_pair(m, match, args, registers, mask):
    high, low = (rounded(_value(registers, a), match[1]) for a in args[1:])
    _set(registers, args[0], high << np.uint32(16) | low, mask)


def _shuffle(m, match, args, registers, mask):
    _set(registers, args[0], _value(registers, args[1])[np.arange(LANES) ^ int(args[2])], mask)


def _load(m, match, args, registers, mask):
    space, count, kind = match["space"], int(match["count"] or 1), match["kind"]
    size, address = int(kind[1:]) // 8, _address(registers, args[1])
    targets = args[0] if isinstance(args[0], list) else [args[0]]
    found = np.zeros((count, LANES), np.uint64 if size == 8 else np.uint32)
    for lane in m.lanes(mask):
        assert address[lane] % (size * count) == 0, f"lane {lane}: {match[0]} at {address[lane]:#x}, not aligned"
        data = m.place(space, int(address[lane]), size * count)
        found[:, lane] = data.view(f"u{size}")
    for target, value in zip(targets, found):
        _set(registers, target, value.view(np.float32) if kind == "f32" else value, mask)


def _store(m, match, args, registers, mask):
    space, count, kind = match["space"], int(match["count"] or 1), match["kind"]
    size, address = int(kind[1:]) // 8, _address(registers, args[0])
    sources = args[1] if isinstance(args[1], list) else [args[1]]
    values = np.array([_value(registers, s) if size == 8 else bits(_value(registers, s)) for s in sources])
    for lane in m.lanes(mask):
        assert address[lane] % (size * count) == 0, f"lane {lane}: {match[0]} at {address[lane]:#x}, not aligned"
        m.place(space, int(address[lane]), size * count)[:] = values[:, lane].astype(f"u{size}").view(np.uint8)


def _matrices(m, match, args, registers, mask):
    """ldmatrix and stmatrix .m8n8.x4: lane i of a warp names row i % 8 of matrix i / 8; a thread holds its lane / 4-th row's
    columns 2 (lane % 4) and + 1 of each."""
    loads = match[1] == "ld"
    parts, word = args if loads else args[::-1]
    address, found = _address(registers, word), np.zeros((4, LANES), np.uint32)
    values = None if loads else [bits(_value(registers, p)) for p in parts]
    for lane in range(LANES):
        for matrix in range(4):
            source = WARP[lane] + 8 * matrix + lane % 32 // 4
            assert address[source] % 16 == 0
            place = m.shared[int(address[source]) + 4 * (lane % 4):][:4]
            if loads:
                found[matrix, lane] = place.view(np.uint32)[0]
            else:
                place[:] = np.array([values[matrix][lane]], np.uint32).view(np.uint8)
    for part, value in zip(parts, found) if loads else ():
        _set(registers, part, value, mask)


def _ld_reduce(m, match, args, registers, mask):
    """multimem.ld_reduce .v4: float32 sums of what every rank has there, rounded once."""
    function, kind, address = _REDUCE[match[1]], match[2], _address(registers, args[1])
    dtype = np.float32 if kind == "f32" else _FLOAT16[kind[:-2]]
    found = np.zeros((4, LANES), np.uint32)
    for lane in m.lanes(mask):
        parts = [m.memory.at(a, 16).view(dtype).astype(np.float32) for a in m.memory.all_ranks(int(address[lane]))]
        total = parts[0]
        for x in parts[1:]:
            total = function(total, x)
        found[:, lane] = total.astype(dtype).view(np.uint32)
    for target, value in zip(args[0], found):
        _set(registers, target, value, mask)


def _multicast_store(m, match, args, registers, mask):
    address, values = _address(registers, args[0]), np.array([bits(_value(registers, s)) for s in args[1]])
    for lane in m.lanes(mask):
        for a in m.memory.all_ranks(int(address[lane])):
            m.memory.at(a, 16)[:] = np.ascontiguousarray(values[:, lane]).view(np.uint8)


def _operand(m, descriptor, rows, k, transposed, dtype):
    """The (rows, k) operand that a matrix descriptor points to; ``transposed``: rows run along the contiguous direction."""
    start, leading, stride = ((int(descriptor) >> s & 0x3fff) * 16 for s in (0, 16, 32))
    span = {1: 128, 2: 64, 3: 32}[int(descriptor) >> 62 & 3]
    r, c = np.indices((rows, k))
    if transposed:
        per = span // 2
        at = start + r // per * leading + c // 8 * stride + c % 8 * span + r % per * 2
    else:
        at = start + r // 8 * stride + r % 8 * span + c * 2
    at ^= (at >> 7 & span // 16 - 1) << 4
    return (m.shared[at].astype(np.uint16) | m.shared[at + 1].astype(np.uint16) << 8).view(dtype).astype(np.float32)


def _wgmma(m, match, args, registers, mask):
    n, kind = int(match[1]), match[2]
    dtype, sums, source, b, add = _FLOAT16[kind], args[0], args[1], args[2], args[3]
    lane, warp = np.arange(LANES) % 32, np.arange(LANES) // 32
    row, col = 16 * warp + lane // 4, 2 * (lane % 4)
    if isinstance(source, list):
        a = np.zeros((64, 16), np.float32)
        for i, register in enumerate(source):
            pair = bits(_value(registers, register))
            for e in range(2):
                a[row + 8 * (i & 1), col + 8 * (i >> 1) + e] = half(pair >> np.uint32(16 * e), kind)
        transposed = args[6] == "1"
    else:
        a, transposed = _operand(m, _value(registers, source)[0], 64, 16, False, dtype), args[7] == "1"
    product = a @ _operand(m, _value(registers, b)[0], n, 16, transposed, dtype).T
    keep = bool(_value(registers, add)[0])
    for i, register in enumerate(sums):
        part = product[row + 8 * (i >> 1 & 1), 8 * (i // 4) + col + (i & 1)]
        _set(registers, register, part + floats(_value(registers, register)) if keep else part, mask)


_SPACE = r"(?:\.relaxed\.(?:sys|gpu))?(?:\.(?P<space>global|shared))?(?:\.v(?P<count>\d))?\.(?P<kind>[bf]\d+)"
_TABLE = [
    (r"mov\.[buf](16|32|64)", _mov),
    (r"add\.u(32|64)", _wide_add),
    (r"setp\.(ne(?=\.[bu])|gt(?=\.s))\.[bsu]32", _setp),
    (r"cvt\.rn\.(bf16|f16)x2\.f32", _round_pair),
    (r"cvt\.rn\.(bf16|f16)\.f32", lambda m, match, a, r, mask: _set(r, a[0], rounded(_value(r, a[1]), match[1]), mask)),
    (r"cvt\.f32\.f16", lambda m, match, a, r, mask: _set(r, a[0], half(_value(r, a[1]), "f16"), mask)),
    (r"max\.NaN\.f32", _binary(np.maximum, floats)), (r"min\.NaN\.f32", _binary(np.minimum, floats)),
    (r"ex2\.approx\.ftz\.f32", _binary(np.exp2, floats)), (r"lg2\.approx\.ftz\.f32", _binary(np.log2, floats)),
    (r"rcp\.approx\.ftz\.f32", _binary(lambda x: np.float32(1) / x, floats)), (r"div\.approx\.ftz\.f32", _binary(np.divide, floats)),
    (r"shfl\.sync\.bfly\.b32", _shuffle),
    (rf"ld{_SPACE}", _load), (rf"st{_SPACE}", _store),
    (r"(ld|st)matrix\.sync\.aligned\.m8n8\.x4\.shared\.b16", _matrices),
    (r"multimem\.ld_reduce\.relaxed\.sys\.global\.(add|min|max)(?:\.acc::f32)?\.v4\.(bf16x2|f16x2|f32)", _ld_reduce),
    (r"multimem\.st\.relaxed\.sys\.global\.v4\.(bf16x2|f16x2|f32)", _multicast_store),
    (r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(bf16|f16)\.(?:bf16|f16)", _wgmma),
    (r"(?:wgmma\.(?:fence|commit_group|wait_group)\.sync\.aligned|bar\.(?:warp\.)?sync)", lambda *_: None),
]

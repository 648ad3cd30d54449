"""The record of a wait that outlasted its limit, from bytes to HangError."""

import ctypes
import struct

import pytest

from pknumba.errors import ConfigError, HangError, WorldError
from pknumba.runtime import World, driver, hang

NAMES = {"role": {2: "storer"}, "kind": {1: "counter"}, "which": {(1, 5): "ready[5]"}}


def write(world, *words):
    """What a kernel's expired wait does."""
    for i, word in reversed(list(enumerate((hang.MAGIC_VALUE, *words)))):
        ctypes.c_uint32.from_address(world.error_record + 4 * i).value = word


def test_layout():
    data = struct.pack("<10I", hang.MAGIC_VALUE, 1, 2, 3, 4 + (11 << 16), 5, 6, 7, 8, 3)
    assert hang.decode(data) == (1, 2, 3, 4, 5, 6, 7, 8, 11, 2) and hang.decode(bytes(40)) is None
    assert hang.decode(struct.pack("<10I", hang.MAGIC_VALUE, *range(9))).told == 7
    assert hang.decode(struct.pack("<10I", hang.MAGIC_VALUE, *[0] * 9)).told is None
    assert struct.unpack_from("<I", data, 4 * hang.SEEN) == (7,)
    block = hang.context_bytes(0x1111, 0x2222, 2.5, 3, 4, 5, 6, 0x7777)
    assert len(block) == hang.CONTEXT_BYTES
    for offset, form, value in ((hang.ERROR, "<Q", 0x1111), (hang.ABORT, "<Q", 0x2222), (hang.LIMIT, "<Q", 2500000000),
                                (hang.CONTEXT_RANK, "<I", 3), (hang.CONTEXT_SIZE, "<I", 4), (hang.EPOCH, "<I", 5),
                                (hang.NUMBER, "<I", 6), (hang.ABORT_PEERS, "<Q", 0x7777)):
        assert struct.unpack_from(form, block, offset) == (value,)


def test_words():
    record = hang.HangRecord(0, 7, 2, 1, 5, 10, 9, 0)
    assert hang.describe(record, NAMES) == "rank 0 block 7 storer waits for counter ready[5]: expected 10, seen 9"
    assert hang.describe(record) == "rank 0 block 7 role 2 waits for kind 1 5: expected 10, seen 9"
    assert hang.describe(record, lambda r: f"block {r.block}") == "block 7"
    assert "end[5]" in hang.describe(record, {"which": lambda kind, which: f"end[{which}]"})


def test_check_raises_once_and_breaks_the_world(stub):
    world = World.local(1, executor="gpu")
    world.check(), world.synchronize()
    world.hang_names = NAMES
    write(world, 0, 7, 2, 1, 5, 10, 9, 0)
    with pytest.raises(HangError, match="storer waits for counter ready\\[5\\]: expected 10, seen "
                                        "9.*PKNUMBA_WAIT_LIMIT_S") as caught:
        world.synchronize()
    assert caught.value.record.block == 7 and "storer" in caught.value.report
    for call in (world.check, world.barrier, lambda: world.symmetric((1,)), world.synchronize):
        with pytest.raises(WorldError, match="broken.*storer"):
            call()
    world.close(), world.close()
    assert stub.live() == 0


def test_operators_name_their_own_records(stub):
    with World.local(1, executor="gpu") as world:
        world.context(names={"role": {2: "loader"}})
        second = world.context(names=NAMES)
        assert struct.unpack("<I", driver.copy_out(second.pointer + hang.NUMBER, 4)) == (second.number,) == (2,)
        write(world, 0, 7, 2, 1, 5, 10, 9, second.number)
        with pytest.raises(HangError, match="storer"):
            world.check()


def test_the_limit_comes_from_the_environment(stub, monkeypatch):
    def limit(world, **options):
        block = world.context(**options)
        return struct.unpack("<Q", driver.copy_out(block.pointer + hang.LIMIT, 8))[0]

    monkeypatch.setenv("PKNUMBA_WAIT_LIMIT_S", "1.5")
    with World.local(1, executor="gpu") as world:
        assert limit(world) == 1500000000 and limit(world, limit_s=0) == 0
    with World.local(1, executor="gpu", wait_limit_s=3) as world:
        assert limit(world) == 3000000000
    monkeypatch.setenv("PKNUMBA_WAIT_LIMIT_S", "soon")
    with pytest.raises(ConfigError, match="'soon'.*number of seconds"):
        World.local(1, executor="gpu")

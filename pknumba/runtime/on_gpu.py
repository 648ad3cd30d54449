"""What a rank has on its GPU: stream, error record, abort word, memory."""

import ctypes
import os
import sys
import warnings
import weakref

from . import device_array, driver, hang, intervals, streams
from .memory import IpcDeviceMemory, LocalDeviceMemory
from ..errors import ConfigError, DriverError, HangError, ProtocolError, UnsupportedError

__all__ = ["Gpu", "ContextBlock", "wait_limit_s"]

def wait_limit_s():
    """Seconds that a device may wait for another rank: PKNUMBA_WAIT_LIMIT_S, or 60; 0 means for ever."""
    text = os.environ.get("PKNUMBA_WAIT_LIMIT_S", "60")
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if limit < 0:
        raise ConfigError(f"PKNUMBA_WAIT_LIMIT_S: {text!r}. It is a number of seconds, 0 for no limit.")
    return limit


def spared(sms):
    """Of multiprocessors that are all promised to ranks of one card, those that a rank has at any time: up to eight fewer."""
    return sms - min(8, sms // 4)


def sure_sms(sms, percent, ranks):
    """Of the multiprocessors that MPS tells a rank of, which may have so many percent of a card, those that it has at any time: no more
    than an equal part. Where all of a card is promised to as many ranks as it has room for, each was seen to have up to eight fewer (on
    an H200: 61 of 66, 24 of 32): MPS limits how many a rank has, and does not part them. Where some is left over, all (14 of 14)."""
    part = min(percent, 100 / ranks)
    equal = int(sms * part / percent)
    return spared(equal) if part * (100 // part) > 97 else equal


class Gpu:
    """One rank's side of a world on GPUs.

    Args:
        link: LocalLink or MpiLink.
        processes: whether ranks are processes (memory by CUDA IPC) or threads of this one.
        seat: this rank's number among the processes of the node (or the ranks of this process): it takes the device of that
            number, modulo the visible devices.
        device: number, instead of the seat's.
        num_sms: how many multiprocessors a kernel may use; None: this rank's share of the device.
        limit_s: how long device code waits; None: :func:`wait_limit_s`.
        stream: the stream of a world whose part this one is. whole: link of all ranks that may share devices; None: `link`.

    Attributes: ``device``, ``num_sms``, ``stream`` (this rank's own, 0 where it is alone in its process), ``error_record``,
    ``abort_word``, ``abort_table`` (device addresses), ``word`` (first of the error record: not 0 where there may be one), ``memory``,
    ``intervals`` (Intervals, or None).
    """

    def __init__(self, link, processes, seat, device=None, num_sms=None, limit_s=None, stream=None, whole=None):
        ok, why = driver.available()
        if not ok:
            raise UnsupportedError(why)
        self.link, self.limit_s = link, wait_limit_s() if limit_s is None else limit_s
        count = driver.device_count()
        if device is not None and not 0 <= device < count:
            raise ConfigError(f"World: device = {device}. {count} device{'s are' if count > 1 else ' is'} visible. Use one of 0 to "
                              f"{count - 1}; CUDA_VISIBLE_DEVICES says which these are.")
        self.device = seat % count if device is None else device
        self.info = driver.device_info(self.device)
        self.card = self.info.name
        driver.make_current(self.device)
        self.num_sms = self._share(whole or link, num_sms, processes)
        self._owns_stream = stream is None and not processes and (whole or link).size > 1
        self.stream = driver.stream_create() if self._owns_stream else stream or 0
        self.memory = (IpcDeviceMemory if processes else LocalDeviceMemory)(link, self.device)
        self._host, self.error_record = driver.alloc_host(hang.RECORD_BYTES)
        ctypes.memset(self._host, 0, hang.RECORD_BYTES)
        self.word = ctypes.c_uint32.from_address(self._host)
        self._abort = self.memory.allocate(hang.ABORT_BYTES, "World", zero=True)
        self.abort_word, self.abort_table = self._abort.pointers[link.rank], self._abort.table
        self.names, self._numbers = {}, 0
        self.intervals = intervals.Intervals(self.device) if intervals.wanted() else None
        if hasattr(link, "on_death"):
            link.on_death(self.abort)

    def _share(self, link, wanted, processes):
        """Multiprocessors for this rank, given who else is on its device."""
        everyone = link.allgather((self.info.uuid, self.info.mps), "World")
        sharing = sum(uuid == self.info.uuid for uuid, _ in everyone)
        parted = processes and self.info.mps and os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
        self.sharing, self.crowded = sharing > 1, sharing > 1 and not parted
        share = sure_sms(self.info.sms, float(parted), sharing) if sharing > 1 and parted else self.info.sms
        if self.crowded:
            share = max(1, share // sharing) if self.info.mps or not processes else share
        if sharing > 1 and processes and not self.info.mps and link.rank == 0 and wanted is None:
            warnings.warn(f"World: {sharing} ranks share {self.info.name} (device {self.device}) without MPS. They take turns, "
                          "milliseconds each. Start them by scripts/mps run.", RuntimeWarning, stacklevel=4)
        if wanted is not None and not 0 < wanted <= share:
            raise ConfigError(f"World: num_sms = {wanted}. This rank has {share} of device {self.device}.")
        return wanted or share

    def make_current(self):
        """Act on this device in this thread, and let CuPy and torch use this rank's stream where it has its own."""
        driver.make_current(self.device)
        device_array.use_stream(self.stream)
        if not self.stream:
            return
        cupy, torch = device_array.cupy_module(), sys.modules.get("torch")
        if cupy is not None:
            cupy.cuda.Device(self.device).use()
            _cupy_stream(cupy, self.stream, self.device).use()
        if torch is not None:
            torch.cuda.set_stream(torch.cuda.ExternalStream(self.stream, f"cuda:{self.device}"))

    def stream_of(self, stream, arrays):
        """Pointer of `stream`; for None this rank's own stream, or the current one of the arrays' library."""
        if stream is None and self.stream:
            return self.stream
        return streams.pointer_of(stream, *arrays)

    def synchronize(self, stream):
        """Wait for `stream` (pointer)."""
        with driver.using(self.device):
            driver.stream_synchronize(stream)

    def record(self):
        """The HangRecord of this rank's device, or None. Costs a read of pinned memory."""
        if self.word.value != hang.MAGIC_VALUE:
            return None
        return hang.decode(ctypes.string_at(self._host, hang.RECORD_BYTES))

    def hang_error(self, record, names):
        """The HangError of a record, in the words of the operator that wrote it; ProtocolError for a debug build's check."""
        report = hang.describe(record, self.names.get(record.operator) or names)
        if record.kind & 255 == hang.CHECK:
            return ProtocolError(f"World: {report}. A debug build checks every index, coordinate and rank before it is used. Look at that "
                                 "line; the world is broken, make a new one.", report=report, record=record)
        if record.told not in (None, self.link.rank):
            return HangError(f"World: {report}, when rank {record.told} had failed or given up. Nobody waits for a rank of a broken world. "
                             "Look at that rank's own error; make a new world.", report=report, record=record)
        return HangError(f"World: {report}. A device waits {self.limit_s:g} s at most for another rank. Look at what that rank "
                         "did instead, or raise PKNUMBA_WAIT_LIMIT_S; the world is broken, make a new "
                         "one.", report=report, record=record)

    def abort(self, by=None, ranks=None):
        """Make every wait on this rank's device give up, because rank `by` (None: this one) has; or on the devices of `ranks`."""
        by, ranks = self.link.rank if by is None else by, (self.link.rank,) if ranks is None else ranks
        if not ranks or not self._abort.open:
            return
        try:
            with driver.using(self.device):
                stream = driver.stream_create()
                for rank in ranks:
                    driver.memset_u32(self._abort.pointers[rank], 1 + by, 1, stream)
                driver.stream_synchronize(stream)
                driver.stream_destroy(stream)
        except DriverError:
            pass  # a lost context waits for nothing

    def context(self, limit_s, names):
        """A new ContextBlock of this rank."""
        self._numbers += 1
        if names is not None:
            self.names[self._numbers] = names
        limit_s = self.limit_s if limit_s is None else limit_s
        data = hang.context_bytes(self.error_record, self.abort_word, limit_s, self.link.rank, self.link.size,
                                  number=self._numbers, abort_peers=self.abort_table,
                                  timeline=self.intervals.pointer if self.intervals else 0)
        return ContextBlock(self.device, data, self._numbers)

    def asarray(self, x):
        """`x` as a CuPy array here, or a DeviceArray without CuPy; torch tensors stay torch's."""
        from . import arrays
        library = arrays.library_of(x)
        if library == "torch":
            return x.to(f"cuda:{self.device}")
        if library in ("cupy", "pknumba"):
            return x
        import numpy
        x = numpy.asarray(x)
        cupy = device_array.cupy_module()
        with driver.using(self.device):
            if cupy is not None:
                try:
                    return cupy.asarray(x)
                except (TypeError, ValueError, KeyError):
                    pass  # a CuPy that does not know bfloat16
            return device_array.DeviceArray.of(x, self.device)

    def allocations(self):
        """What the world must release last."""
        return [self._abort]

    def close(self):
        """Give back what needs no other rank."""
        if self._host:
            with driver.using(self.device):
                if self._owns_stream:
                    driver.stream_synchronize(self.stream)
                    driver.stream_destroy(self.stream)
                driver.free_host(self._host)
            self._host = self.word = None


def _cupy_stream(cupy, pointer, device):
    """CuPy's object for a stream; newer versions take anything with the stream protocol."""
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(type("Stream", (), {"__cuda_stream__": lambda self: (0, pointer)})())
    return cupy.cuda.ExternalStream(pointer, device)


class ContextBlock:
    """64 bytes of device memory that tell a kernel where to report, how long to wait and who it is (layout: ``hang``).

    Attributes: ``pointer``, ``number`` (what a record's OPERATOR word may carry).
    """

    def __init__(self, device, data, number):
        self.number = number
        with driver.using(device):
            self.pointer = driver.alloc(len(data))
            driver.copy_in(self.pointer, data)
        self._finalize = weakref.finalize(self, device_array._free, self.pointer, device)
        self._finalize.atexit = False

    def close(self):
        """Free it; no kernel that uses it may run."""
        self._finalize()
        self.pointer = 0

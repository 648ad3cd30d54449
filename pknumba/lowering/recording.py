"""How kernels record what their roles do: intervals in a ring of device memory, where they are compiled for it (``variant.timeline``)."""

import contextlib

from ..tiles import HEADER
from . import variant
from .types import I32

#: Shared-memory offset (from the block's base) of the address of the launch context: the semaphores end before it.
CONTEXT = HEADER - 64
#: 16 counts of 16 bits: how many intervals each warp of the block has recorded.
CURSORS = HEADER - 48
#: Byte offset of the ring's address in the launch context, and where a block keeps it: 0 until it has come from device memory.
TIMELINE, RING = 48, HEADER - 16
#: The ring: entries of 16 bytes of each warp, warps of each block, blocks. An interval is its begin (64 bits of nanoseconds), its length,
#: and code | role << 4 | SM << 8 | number << 16.
ENTRIES, WARPS, BLOCKS = 512, 16, 264
#: Bits of a thread's number that say which of its worker it is.
LANES = {"warp": 31, "warpgroup": 127}
ROLE_NUMBERS = ("", "loader", "consumer", "storer", "communicator")


class Recording:
    """Base of Ptx. Codes of intervals; waits are recorded from WORTH nanoseconds on."""

    TASK, SEMAPHORE_WAIT, COUNTER_WAIT, WORTH = 1, 2, 3, 200

    @property
    def recording(self):
        """Whether kernels record what they do."""
        return variant.timeline()

    @property
    def recording_waits(self):
        """Whether kernels record waits for semaphores too: a wait that is short enough to cost nothing is then looked at twice."""
        return variant.waits()

    def prepare_ring(self, base, context_at):
        """The block keeps the ring's address: fetched by the first thread of its last warp, which no role waits for."""
        if self.recording:
            last = self("{ .reg .u32 t, n; .reg .pred p; mov.u32 t, %tid.x; mov.u32 n, %ntid.x; sub.u32 n, n, 32; setp.eq.u32 p, t, n; "
                        "selp.u32 $0, 1, 0, p; }", out=[I32])
            with self.when(self.b.icmp_unsigned("==", last, self.const(1)), likely=False):
                self(f"{{ .reg .u64 b; ld.global.u64 b, [$1+{TIMELINE}]; st.shared.u64 [$0+{RING}], b; }}", base, context_at)

    def stamp(self):
        """The low half of the nanosecond clock."""
        return self("mov.u32 $0, %globaltimer_lo;", out=[I32])

    def record(self, role, code, begin, number, least=0):
        """From ``begin`` (a stamp) until now this worker did something; nothing below ``least`` nanoseconds is kept.

        All threads go the same way, and one of them stores: after a branch on a thread's number the assembler would take the loop of the
        next task for divergent, and put wgmma's descriptors through ordinary registers.
        """
        lanes = LANES.get(role.scope)
        last = f"mov.u32 k, %tid.x; and.b32 k, k, {lanes}; setp.eq.and.u32 p, k, 0, p; " if lanes else ""
        self(f"{{ .reg .u64 c, b, e; .reg .u32 n, d, m, w, t, l, k; .reg .pred p; "
             f"mov.u64 e, %globaltimer; cvt.u32.u64 l, e; sub.u32 d, l, $1; setp.ge.u32 p, d, {least}; {last}"
             f"ld.volatile.shared.u64 b, [$0+{RING}]; mov.u32 t, %ctaid.x; setp.ne.and.u64 p, b, 0, p; setp.lt.and.u32 p, t, {BLOCKS}, p; "
             f"mov.u32 w, %tid.x; shr.u32 w, w, 5; shl.b32 m, w, 1; add.u32 m, m, $0; ld.shared.u16 n, [m+{CURSORS}]; "
             f"add.u32 l, n, 1; @p st.shared.u16 [m+{CURSORS}], l; and.b32 n, n, {ENTRIES - 1}; "
             f"mad.lo.u32 t, t, {WARPS}, w; mad.lo.u32 t, t, {ENTRIES}, n; mul.wide.u32 c, t, 16; add.u64 b, b, c; "
             "cvt.u64.u32 c, d; sub.u64 e, e, c; mov.b64 {l, n}, e; mov.u32 m, %smid; shl.b32 m, m, 8; shl.b32 t, $2, 16; "
             f"or.b32 m, m, t; or.b32 m, m, {code | ROLE_NUMBERS.index(role.name) << 4}; @p st.global.v4.u32 [b], {{l, n, d, m}}; }}",
             self.shared_base(), begin, number)

    @contextlib.contextmanager
    def waiting(self, role, code, number):
        """``with p.waiting(...)``: emit a wait; where kernels record that kind of wait, a long one becomes an interval."""
        begin = self.stamp() if (self.recording_waits if code == self.SEMAPHORE_WAIT else self.recording) else None
        yield
        if begin is not None:
            self.record(role, code, begin, number, self.WORTH)

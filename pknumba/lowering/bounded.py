"""Waits that end: at most as long as a launch may wait, and not once another rank has given up. Who gives up says who waited for what."""

from . import sites, variant
from .recording import CONTEXT, ROLE_NUMBERS, Recording
from .types import I32

#: Byte offsets in the launch context (device memory). A limit of 0 means no limit.
ERROR, ABORT, LIMIT, CONTEXT_RANK, CONTEXT_SIZE, EPOCH, NUMBER = 0, 8, 16, 24, 28, 32, 36
#: Nanoseconds for which a thread that gives up stays in a cluster. The waits of all others return at once then, in one or two microseconds.
LINGER = 1 << 27
#: Words of the error record (pinned host memory), and its first word once it is complete.
MAGIC = 1611526157
RECORD = ("magic", "rank", "block", "role", "kind", "which", "expected", "seen", "operator", "told")
#: What ``kind`` may be: a semaphore (which = its byte offset), or counters (which = number; the array is kind >> 8 & 255). The number
#: of the source line (``sites``) stands above, from bit 16 on.
SEMAPHORE, COUNTER = 1, 2


class Bounded(Recording):
    """Base of Ptx."""

    SEMAPHORE, COUNTER = SEMAPHORE, COUNTER

    def spin(self, poll, base, *args, declare="", seen=0, after="", warp=False, soon=False, patient=False):
        """Poll until the predicate ``p`` is true; at most as long as the launch may wait, and not once somebody has given up.

        Args:
            poll: PTX that sets p. ``$1`` .. are what it leaves behind, then comes base (``shared_base()``), then args.
            declare: registers that poll needs. seen: how many 32-bit values it leaves. after: PTX that follows in either case.
            warp: the lanes of a warp leave the loop together, once p is true for all of them. soon: poll once before what bounds the wait
            is read, which may lie as far away as what is waited for; takes registers. patient: a sixteenth longer than others, so that who
            waits for another rank gives up before those who wait for him.

        Returns: [1 or 0 (gave up), *values].
        """
        votes = [f"vote.sync.{how}.pred {p}, {p}, 0xffffffff;" * warp for how, p in (("all", "p"), ("any", "p"), ("all", "q"))]
        at, (all_p, any_p, all_q) = f"${seen + 1}", votes
        if not variant.bounded():
            text = f"{{ .reg .pred p; {declare} mov.u32 $0, 1; AGAIN: {poll} {all_p} @!p bra AGAIN; {after} }}"
        else:
            bound = (f"mov.u64 t, %globaltimer; ld.shared.u64 c, [{at}+{CONTEXT}]; ld.global.u64 l, [c+{LIMIT}]; "
                     + "shr.u64 u, l, 4; add.u64 l, l, u; " * patient + f"ld.global.u64 a, [c+{ABORT}];")
            first = "mov.u64 t, 0;" if soon else bound
            then = f"setp.ne.u64 q, t, 0; {all_q} @q bra LATE; {bound} bra AGAIN; LATE:" if soon else ""
            text = (f"{{ .reg .pred p, q; .reg .u64 t, u, c, l, a; .reg .u32 s; {declare} {first} mov.u32 $0, 1; "
                    f"AGAIN: {poll} {all_p} @p bra DONE; {then} ld.relaxed.gpu.global.u32 s, [a]; setp.ne.u32 p, s, 0; "
                    f"{any_p} @p bra GONE; mov.u64 u, %globaltimer; sub.u64 u, u, t; sub.u64 c, l, 1; setp.lt.u64 q, u, c; "
                    f"{all_q} @q bra AGAIN; GONE: mov.u32 $0, 0; DONE: {after} }}")
        out = self(text, base, *args, out=[I32] * (1 + seen))
        return [out] if not seen else [self.b.extract_value(out, i) for i in range(1 + seen)]

    def keep_epoch(self, epoch):
        """Write the number of the call that is over into the launch context."""
        self(f"{{ .reg .u64 c; ld.shared.u64 c, [$0+{CONTEXT}]; st.global.u32 [c+{EPOCH}], $1; }}", self.shared_base(), epoch)

    def give_up(self, role, kind, which, expected, seen, base=None):
        """A wait has expired, or another rank has given up: write the record if nobody did, raise the abort word (1 + the rank that gave
        up first; the next word counts who would write the record), and leave.

        Roles of one thread or warp exit, in a cluster a while later: consumers of other blocks go on, and arrive here. Warpgroups go on
        with whatever is in their tiles: their named barriers and wgmma must stay complete, and every later wait of this block returns at
        once.
        """
        base = self.shared_base() if base is None else base
        word = "st.relaxed.sys.global.u32"
        self("{ .reg .u64 c, e, a; .reg .u32 s, k; .reg .pred q; "
             f"ld.shared.u64 c, [$0+{CONTEXT}]; ld.global.u64 e, [c+{ERROR}]; ld.global.u64 a, [c+{ABORT}]; "
             f"atom.relaxed.gpu.global.add.u32 s, [a+4], 1; setp.ne.u32 q, s, 0; @q bra GONE; ld.global.u32 k, [c+{CONTEXT_RANK}]; "
             f"{word} [e+4], k; add.u32 k, k, 1; atom.relaxed.gpu.global.cas.b32 s, [a], 0, k; {word} [e+36], s; mov.u32 k, %ctaid.x; "
             f"{word} [e+8], k; mov.u32 k, {ROLE_NUMBERS.index(role.name)}; {word} [e+12], k; "
             f"mov.u32 k, {kind | sites.number() << 16}; {word} [e+16], k; {word} [e+20], $1; {word} [e+24], $2; {word} [e+28], $3; "
             f"ld.global.u32 k, [c+{NUMBER}]; {word} [e+32], k; fence.acq_rel.sys; mov.u32 k, {MAGIC}; {word} [e], k; GONE: }}",
             base, which, expected, seen)
        if role.scope != "warpgroup":
            linger = ("{ .reg .u64 t, u; .reg .pred q; mov.u64 t, %globaltimer; LINGER: nanosleep.u32 100000; mov.u64 u, %globaltimer; "
                      f"sub.u64 u, u, t; setp.lt.u64 q, u, {LINGER}; @q bra LINGER; }} ")
            self(linger * (role.cluster > 1) + "exit;")

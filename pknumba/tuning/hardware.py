"""Constants of cards, each with where it comes from."""

from dataclasses import dataclass, fields, replace

__all__ = ["Figure", "Hardware", "H100_PAPER", "H200"]


class Figure(float):
    """A number that knows where it comes from (``source``)."""

    def __new__(cls, value, source):
        self = super().__new__(cls, value)
        self.source = source
        return self

    def __getnewargs__(self):
        return float(self), self.source


@dataclass(frozen=True)
class Hardware:
    """A card and its link to the others. Rates are of one card, per second and direction, with all SMs at work.

    Attributes:
        name: for people. sms: multiprocessors.
        tensor: FLOP/s of 16-bit products summed in float32. memory: bytes read plus written. cache: bytes of the L2.
        link: bytes that the link could carry. copy_engine, tma, tma_add, register, switch: bytes that it does carry by copy engine, by bulk
            copies, by bulk copies that add, by loads and stores, and by loads that the switch sums.
        tma_sms, register_sms: SMs that saturate the link.
        cache_rate: bytes of the L2. port: bytes between one SM and the L2. shared: bytes of one SM's shared memory. alu: float32 operations
            of one SM, outside its tensor cores.
        launch_s: from the end of one kernel to the work of the next. arrive_s: an arrival until its waiter goes on, inside an SM.
        hop_s: a signal until its waiter goes on, through memory. peer_s: the same to another card. load_s: from a bulk load to its
            data. touch_s: from a warp's load to its data; peer_touch_s: in the memory of another card.
    """

    name: str
    sms: Figure
    tensor: Figure
    memory: Figure
    cache: Figure
    link: Figure
    copy_engine: Figure
    tma: Figure
    tma_add: Figure
    register: Figure
    switch: Figure
    tma_sms: Figure
    register_sms: Figure
    cache_rate: Figure
    port: Figure
    shared: Figure
    alu: Figure
    launch_s: Figure
    arrive_s: Figure
    hop_s: Figure
    peer_s: Figure
    load_s: Figure
    touch_s: Figure
    peer_touch_s: Figure

    def replace(self, **figures):
        """A card with other constants."""
        return replace(self, **figures)

    def sources(self):
        """{constant: (value, where it comes from)}."""
        return {f.name: (float(v), getattr(v, "source", "given")) for f in fields(self) if f.name != "name"
                for v in (getattr(self, f.name),)}


_P = "arXiv 2511.13940, "
_SPIKE = "two H200s over NVLink, spike of the design: "
_MICRO = "two H200s, benchmarks/micro.py: "
#: Bulk copies that add, against those that store, over NVLink 4 with all SMs.
_ADDS = Figure(325 / 361, _MICRO + "325 of 361 GB/s")

_ALU = Figure(128 * 1.755e9, "128 lanes at 1.755 GHz")

#: The card of the paper's evaluation, with the constants that the paper itself uses.
H100_PAPER = Hardware(
    "H100 of the paper",
    sms=Figure(132, _P + "section 4"),
    tensor=Figure(989e12, _P + "section 3.1.3: R in K >= s R / (2 B)"),
    memory=Figure(3e12, _P + "section 2"),
    cache=Figure(50e6, _P + "section 2"),
    link=Figure(450e9, _P + "section 2"),
    copy_engine=Figure(368.82e9, _P + "table 1"),
    tma=Figure(350.01e9, _P + "table 1"),
    tma_add=Figure(350.01e9 * _ADDS, _P + "table 1, times what adding costs on the same link: " + _ADDS.source),
    register=Figure(342.68e9, _P + "table 1"),
    switch=Figure(342.68e9, _P + "table 1: reductions in the switch are made by loads"),
    tma_sms=Figure(15, _P + "figure 3"),
    register_sms=Figure(76, _P + "figure 3"),
    cache_rate=Figure(12e12, _P + "section 2"),
    port=Figure(210e9, "not in the paper; that of the H200"),
    shared=Figure(33e12 / 132, _P + "section 2"),
    alu=_ALU,
    launch_s=Figure(3e-6, "not in the paper; that of the H200"),
    arrive_s=Figure(64e-9, _P + "section 3.1.3"),
    hop_s=Figure(832e-9, _P + "section 3.1.3"),
    peer_s=Figure(1.6e-6, "not in the paper; that of the H200"),
    load_s=Figure(264e-9, "not in the paper; that of the H200"),
    touch_s=Figure(416e-9, "half of a hand-over through memory, which is a store and a load"),
    peer_touch_s=Figure(1.6e-6, "not in the paper; that of the H200"))

#: The card that this repository is measured on.
H200 = Hardware(
    "H200",
    sms=Figure(132, "cuDeviceGetAttribute"),
    tensor=Figure(132 * 5.3e12, "benchmarks/results/gemm.jsonl: large products"),
    memory=Figure(3922e9, _MICRO + "bulk loads of 256 MiB, 132 SMs"),
    cache=Figure(60e6, "cuDeviceGetAttribute"),
    link=Figure(450e9, "18 links of NVLink 4"),
    copy_engine=Figure(389e9, _MICRO + "256 MiB"),
    tma=Figure(361e9, _MICRO + "32 KiB, 132 SMs"),
    tma_add=Figure(325e9, _MICRO + "32 KiB, 132 SMs"),
    register=Figure(366e9, _SPIKE + "16 bytes a lane, 1024 threads, 132 SMs"),
    switch=Figure(366e9, "not measured: multicast stays off on these machines; that of registers"),
    tma_sms=Figure(361 / 50.5, _MICRO + "361 GB/s, one SM 50.5"),
    register_sms=Figure(18, _SPIKE + "333 of 366 GB/s with 16 SMs"),
    cache_rate=Figure(12e12, "the paper's; bulk loads of 256 MiB reach 8.1e12, launch included, a product of 2048^3 takes 9.8e12"),
    port=Figure(210e9, _MICRO + "bulk loads by one SM"),
    shared=Figure(33e12 / 132, "not measured; the paper's"),
    alu=_ALU,
    launch_s=Figure(3e-6, "benchmarks/results/gemm.jsonl: 1024 x 1024 x 1024 less its arithmetic"),
    arrive_s=Figure(38e-9, _MICRO + "between two warps"),
    hop_s=Figure(1256e-9, _MICRO + "between two blocks"),
    peer_s=Figure(1612e-9, _MICRO + "between two ranks"),
    load_s=Figure(264e-9, _MICRO + "a bulk load of 2 KiB from the L2"),
    touch_s=Figure(628e-9, "half of a hand-over through memory, which is a store and a load"),
    peer_touch_s=Figure(1612e-9, "not measured: as long as a hand-over between ranks"))

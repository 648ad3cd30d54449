"""Templates: who works when. They schedule a kernel's roles on both executors and launch it."""

from .attending import attend
from .base import Template
from .comm import Comm, Packets, counted
from .exchanges import ColumnsToColumns, ColumnsToRows, Exchanged, RowsToRows
from .decoding import attend_decode
from .combine_calls import combine
from .dispatch_calls import dispatch, kept_result
from .expert_calls import Routes
from .experts import Experts, Tokens, routed
from .forms import Added, Gathered, Scattered, Sliced, Whole
from .group_calls import multiply_groups
from .groups import Grouped
from .lcs import LCS, Direct
from .lcsc import LCSC, LCSD, LCSI, LCSM
from .matrices import multiply
from .owned import OwnedRows, OwnedTiles
from .parcels import Parcels
from .repeated import repeated
from .rows import counted_rows, meeting_rows
from .ringing import attend_ring, ring_rows
from .ulysses import attend_ulysses
from .bands import meeting_movers
from .transfers import communicate

__all__ = ["Template", "Comm", "LCS", "LCSC", "LCSM", "Whole", "Scattered", "Added", "Gathered", "attend", "attend_decode",
           "attend_ring", "attend_ulysses", "meeting_movers", "ring_rows", "communicate", "counted", "counted_rows",
           "meeting_rows", "Grouped", "multiply", "multiply_groups", "LCSD", "LCSI", "Exchanged", "RowsToRows", "ColumnsToRows",
           "ColumnsToColumns", "Packets", "Parcels"]
__all__ += ["Sliced", "combine", "dispatch", "kept_result", "Routes", "Experts", "Tokens", "routed"]
__all__ += ["Direct", "OwnedRows", "OwnedTiles", "repeated"]

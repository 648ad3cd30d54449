"""Operators on worlds that span nodes: inside each node the kernels of one node, between nodes an engine, both under way at once.

``templates`` hands calls whose world spans nodes to :mod:`calls`; users call the public operators.
"""

from .calls import attend_ring, communicate, moe_layer, multiply, unsupported

__all__ = ["attend_ring", "communicate", "moe_layer", "multiply", "unsupported"]

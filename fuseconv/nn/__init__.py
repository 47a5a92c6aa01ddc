"""Modules that call the fused ops, for models under development. They load the state dicts of torch.nn modules."""

from __future__ import annotations

from fuseconv.nn.layer_norm import AddLayerNorm
from fuseconv.nn.linear import LinearAct, LinearGated
from fuseconv.nn.mlp import MLP

__all__ = ["MLP", "AddLayerNorm", "LinearAct", "LinearGated"]

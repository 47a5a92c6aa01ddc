"""Modules over the fused ops, for models that are written rather than converted: they load torch.nn's state dicts."""

from __future__ import annotations

from fuseconv.nn.layer_norm import AddLayerNorm
from fuseconv.nn.linear import LinearAct, LinearGated
from fuseconv.nn.mlp import MLP

__all__ = ["MLP", "AddLayerNorm", "LinearAct", "LinearGated"]

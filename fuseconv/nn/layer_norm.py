"""AddLayerNorm: the residual and the norm after it, in one pass over memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import fuseconv.ops  # noqa: F401  # registers the op


class AddLayerNorm(nn.LayerNorm):
    """layer_norm(x + residual), and the sum itself, which the next residual needs.

    Constructed and initialised as `nn.LayerNorm`, with its state dict: `AddLayerNorm(normalized_shape, eps=1e-5,
    elementwise_affine=True, bias=True, device=None, dtype=None)`.

    Shape:
        x and residual [..., *normalized_shape], of one dtype; both results are of that shape and dtype.
    """

    @classmethod
    def from_layer_norm(cls, norm: nn.LayerNorm) -> AddLayerNorm:
        """Returns a module with the very parameters of `norm`: an optimizer that holds them goes on."""
        made = cls(norm.normalized_shape, norm.eps, norm.elementwise_affine, norm.bias is not None, device="meta")
        made.weight, made.bias = norm.weight, norm.bias
        return made.train(norm.training)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # it adds
        """Returns layer_norm(s) and s = x + residual."""
        dims = len(self.normalized_shape)
        if dims == 1:
            y, s = torch.ops.fuseconv.add_layer_norm(x, residual, self.weight, self.bias, self.eps)
            return y, s
        # The op's rows are one dim.
        weight, bias = (None if one is None else one.flatten() for one in (self.weight, self.bias))
        y, s = torch.ops.fuseconv.add_layer_norm(x.flatten(-dims), residual.flatten(-dims), weight, bias, self.eps)
        return y.view(x.shape), s.view(x.shape)

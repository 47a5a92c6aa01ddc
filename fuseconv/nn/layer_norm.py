"""AddLayerNorm: a residual addition and the layer norm of the sum, in one kernel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import fuseconv.ops  # noqa: F401  # registers the op


class AddLayerNorm(nn.LayerNorm):
    """Computes layer_norm(x + residual) in one kernel, and also returns the sum, for the next residual connection.

    The constructor, the initialization and the state dict are the same as for `nn.LayerNorm`:
    `AddLayerNorm(normalized_shape, eps=1e-5, elementwise_affine=True, bias=True, device=None, dtype=None)`. Under
    torch.autocast, the op computes in float32.

    Shape:
        x and residual: [..., *normalized_shape], of the same dtype. Both results have this shape.

    Raises:
        RuntimeError: the call has wrong shapes or dtypes; see `fuseconv.ops.add_layer_norm`.

    Examples:
        >>> norm = fuseconv.nn.AddLayerNorm(16)
        >>> y, s = norm(torch.randn(2, 5, 16), torch.randn(2, 5, 16))
        >>> y.shape, s.shape
        (torch.Size([2, 5, 16]), torch.Size([2, 5, 16]))
    """

    @classmethod
    def from_layer_norm(cls, norm: nn.LayerNorm) -> AddLayerNorm:
        """Returns an AddLayerNorm that shares the parameters of `norm`, so that existing optimizers remain valid."""
        made = cls(norm.normalized_shape, norm.eps, norm.elementwise_affine, norm.bias is not None, device="meta")
        made.weight, made.bias = norm.weight, norm.bias
        return made.train(norm.training)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # residual
        """Returns the pair (layer_norm(s), s), where s = x + residual. Both tensors have the shape of x."""
        dims = len(self.normalized_shape)
        if dims == 1:
            y, s = torch.ops.fuseconv.add_layer_norm(x, residual, self.weight, self.bias, self.eps)
            return y, s
        # The op normalizes over only one dim.
        weight, bias = (None if one is None else one.flatten() for one in (self.weight, self.bias))
        y, s = torch.ops.fuseconv.add_layer_norm(x.flatten(-dims), residual.flatten(-dims), weight, bias, self.eps)
        return y.view(x.shape), s.view(x.shape)

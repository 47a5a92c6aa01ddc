"""Tables of ops with unusual arguments, which every target must compute correctly."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from support.lowering_table import INTEGERS, ROWS, Table, constant, weight
from support.lowerings_of_dtypes import DOUBLES, EMPTY, HALVES
from support.lowerings_of_windows import CONVOLUTIONS, CONVOLUTIONS_1D, CONVOLUTIONS_3D, POOLS, REDUCTIONS

NORMS = Table(
    (ROWS,),
    {
        "layer_norm": lambda x: (F.layer_norm(x, (8,)), F.layer_norm(x, (8,), weight(8), weight(8), 1e-3)),
        "layer_norm of two": lambda x: (F.layer_norm(x, (6, 8)), F.layer_norm(x, (6, 8), weight(6, 8), weight(6, 8))),
        "layer_norm without bias": lambda x: F.layer_norm(x, (8,), weight(8)),
        "layer_norm without weight": lambda x: F.layer_norm(x, (8,), None, weight(8)),
        "layer_norm f64": lambda x: F.layer_norm(x.double(), (8,), weight(8).double()),
        "layer_norm f16": lambda x: F.layer_norm(x.half(), (8,), weight(8).half(), weight(8).half()),
        "rms_norm": lambda x: (F.rms_norm(x, (8,)), F.rms_norm(x, (8,), weight(8), 1e-3), F.rms_norm(x, (6, 8))),
        "batch_norm of rows": lambda x: F.batch_norm(x[:, 0], weight(8), weight(8).abs() + 0.5, weight(8), weight(8)),
        "group_norm of rows": lambda x: F.group_norm(x[:, 0], 2, weight(8), weight(8)),
        "group_norm f16": lambda x: F.group_norm(x.half(), 2),
        "linear": lambda x: (F.linear(x, weight(5, 8)), F.linear(x, weight(5, 8), weight(5)), F.linear(x[0, 0], weight(5, 8))),
        "linear of a vector": lambda x: F.linear(x, weight(8)),
        "bilinear": lambda x: F.bilinear(x, x.flip(1), weight(3, 8, 8), weight(3)),
        "matmul": lambda x: (x @ x.mT, x @ weight(8), weight(6) @ x, x[0, 0] @ x[0, 1], x @ weight(8, 3), x[0] @ x.mT),
        "bmm": lambda x: (torch.bmm(x, x.mT), torch.baddbmm(x[:, :, :6], x, x.mT, beta=0.5, alpha=2.0)),
        "addmm": lambda x: (torch.addmm(weight(6), x[0], x[0].mT, beta=0.5, alpha=3), torch.addmm(weight(6, 6), x[0], x[0].mT)),
        "addmv": lambda x: (torch.addmv(weight(6), x[0], weight(8)), torch.mv(x[0], weight(8)), torch.outer(x[0, 0], x[0, 1])),
        "addbmm": lambda x: torch.addbmm(weight(6, 6), x, x.mT),
        "addcmul": lambda x: (torch.addcmul(x, x, x, value=0.5), torch.addcdiv(x, x, x.abs() + 1, value=-2)),
        "integer matmul": lambda x: x.long() @ x.long().mT,
        "einsum": lambda x: (
            torch.einsum("bij,bkj->bik", x, x), torch.einsum("bij->ji", x), torch.einsum("bii->bi", x[:, :, :6]),
            torch.einsum("bij,j->bi", x, weight(8)), torch.einsum("...j,kj->...k", x, weight(3, 8)),
            torch.einsum("bij,bij->b", x, x), torch.einsum("bi,bj->bij", x[:, 0], x[:, 1]),
        ),
        "tensordot": lambda x: (torch.tensordot(x, weight(6, 8, 3), 2), torch.tensordot(x, weight(8, 3), ([2], [0]))),
        "kron": lambda x: torch.kron(x[0], weight(2, 2)),
        "vdot": lambda x: (torch.dot(x[0, 0], x[0, 1]), torch.vdot(x[0, 0], x[0, 1]), torch.inner(x, x[0, 0])),
        "cross": lambda x: (torch.linalg.cross(x[..., :3], x[..., 3:6]), torch.cross(x[..., :3], x[..., 3:6], -1)),
        "multi_dot": lambda x: torch.linalg.multi_dot([x[0], x[0].mT, x[0]]),
        "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
        "attention of heads": lambda x: F.scaled_dot_product_attention(*3 * (x.unflatten(-1, (2, 4)).transpose(1, 2),)),
        "attention causal": lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None, :4], x[:, None, :4], is_causal=True),
        "attention bool mask": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=weight(6, 6) > 0, scale=0.1),
        "attention hidden rows": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=torch.arange(6)[:, None] > 2 + torch.arange(6)),
        "attention float mask": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=weight(6, 6)),
        "attention grouped": lambda x: F.scaled_dot_product_attention(
            x.unflatten(-1, (4, 2)).transpose(1, 2), *2 * (x[..., :4].unflatten(-1, (2, 2)).transpose(1, 2),), enable_gqa=True
        ),
        "multi_head_attention": lambda x: F.multi_head_attention_forward(
            x, x, x, 8, 2, weight(24, 8), weight(24), None, None, False, 0.0, weight(8, 8), weight(8), training=False
        ),
        "dropout": lambda x: (F.dropout(x, 0.3, False), F.alpha_dropout(x, 0.3, False), F.feature_alpha_dropout(x, 0.3, False)),
        "embedding_bag": lambda x: F.embedding_bag(torch.arange(6).expand(x.shape[0], 6), weight(10, 8), mode="mean"),
        "gru": lambda x: torch.ops.aten.gru.input(
            x, x.new_zeros(1, x.shape[0], 5), [weight(15, 8), weight(15, 5), weight(15), weight(15)],
            True, 1, 0.0, False, False, True
        )[0],
        "mse_loss": lambda x: (F.mse_loss(x, x.flip(1)), F.l1_loss(x, x.flip(1)), F.smooth_l1_loss(x, x.flip(1)), F.huber_loss(x, x.flip(1))),
        "binary_cross_entropy": lambda x: (F.binary_cross_entropy(x.sigmoid(), (x > 0).float()), F.binary_cross_entropy_with_logits(x, (x > 0).float())),
        "kl_div": lambda x: F.kl_div(x.log_softmax(-1), x.softmax(-1), reduction="batchmean"),
    },
)  # fmt: skip

ELEMENTWISE = Table(
    (ROWS,),
    {
        "abs and sign": lambda x: (x.abs(), x.sign(), x.sgn(), x.signbit(), torch.copysign(x, -x), x.neg(), x.positive()),
        "exp and log": lambda x: (x.exp(), x.exp2(), x.expm1(), x.abs().log(), x.abs().log2(), x.abs().log10(), x.abs().log1p()),
        "roots": lambda x: (x.abs().sqrt(), x.abs().add(0.1).rsqrt(), x.reciprocal(), x.square(), x.abs() ** (1 / 3)),
        "trigonometry": lambda x: (x.sin(), x.cos(), x.tan(), x.tanh().asin(), x.tanh().acos(), x.atan(), torch.atan2(x, x.flip(1))),
        "hyperbolic": lambda x: (x.sinh(), x.cosh(), x.tanh(), x.asinh(), (x.abs() + 1).acosh(), (x * 0.1).atanh()),
        "atan2 of all quadrants": lambda x: (torch.atan2(x.sign(), x.flip(2).sign()), torch.atan2(x * 0, x)),
        "erf": lambda x: (x.erf(), x.erfc()),
        "erfinv": lambda x: (x.tanh() * 0.9).erfinv(),
        "lgamma": lambda x: (x.abs() + 0.5).lgamma(),
        "sinc": lambda x: x.sinc(),
        "xlogy": lambda x: (torch.xlogy(x, x.abs()), torch.special.xlog1py(x, x.abs()), torch.special.entr(x.abs())),
        "logit": lambda x: (x.sigmoid().logit(), x.sigmoid().logit(eps=1e-2)),
        "sigmoid": lambda x: (x.sigmoid(), F.logsigmoid(x * 50), torch.special.expit(x)),
        "logaddexp": lambda x: (torch.logaddexp(x, x.flip(1)), torch.logaddexp2(x, x.flip(1)), torch.logaddexp(x * 200, x)),
        "hypot": lambda x: torch.hypot(x, x.flip(1)),
        "lerp": lambda x: (torch.lerp(x, x.flip(1), 0.3), torch.lerp(x, x.flip(1), x.sigmoid())),
        "gelu": lambda x: (F.gelu(x), F.gelu(x, approximate="tanh"), F.gelu(x * 30)),
        "relu": lambda x: (F.relu(x), F.relu6(x * 4), F.leaky_relu(x, 0.2), F.leaky_relu(x, -0.5), x.relu()),
        "elu": lambda x: (F.elu(x), F.elu(x, 0.3), F.selu(x), F.celu(x), F.celu(x, 0.3)),
        "softplus": lambda x: (F.softplus(x), F.softplus(x * 50), F.softplus(x, 2.0, 1.0), F.softplus(-x * 200)),
        "shrink": lambda x: (F.hardshrink(x), F.hardshrink(x, 0.7), F.softshrink(x), F.softshrink(x, 0.7), F.tanhshrink(x)),
        "threshold": lambda x: (F.threshold(x, 0.3, -2.0), F.threshold(x, -0.3, 5.0)),
        "hard": lambda x: (F.hardsigmoid(x * 4), F.hardswish(x * 4), F.hardtanh(x * 3), F.hardtanh(x, -0.2, 0.7)),
        "silu": lambda x: (F.silu(x), F.silu(x * 50), F.mish(x), F.mish(x * 50), F.softsign(x)),
        "clamp": lambda x: (x.clamp(-0.5, 0.7), x.clamp(min=0.1), x.clamp(max=0.1), x.clamp(1, -1), x.clamp(0, 0.5), x.clamp(min=-0.5, max=1), x.clamp_min(0), x.clamp_max(0)),
        "clamp by tensors": lambda x: (x.clamp(x.flip(1), x.flip(2)), x.clamp(min=weight(8)), x.clamp(max=weight(6, 1))),
        "clamp of integers": lambda x: ((x * 5).long().clamp(-3, 4), (x * 5).int().clamp(min=0), (x * 5).long().clamp(max=2)),
        "rounding": lambda x: ((x * 2).round(), (x * 5).floor().div(2).round(), x.round(decimals=1), x.floor(), x.ceil(), x.trunc(), x.frac()),
        "round half": lambda x: (torch.arange(-8.0, 8.0) / 2 + x.sum() * 0).round(),
        "remainder": lambda x: (x % 0.3, x % -0.3, x.fmod(0.3), x.fmod(-0.3), torch.remainder(x, x.flip(1)), torch.fmod(x, x.flip(1))),
        "remainder by a number": lambda x: torch.remainder(2.0, x),
        "divisions": lambda x: (x / 3, 3 / x, x // 0.3, torch.div(x, 0.3, rounding_mode="trunc"), torch.div(x, x.flip(1), rounding_mode="floor")),
        "floor_divide": lambda x: (torch.floor_divide(x, 0.7), torch.floor_divide(x, x.flip(1)), -x // 0.7),
        "pow": lambda x: (x**2, x**3, x**-1, x**-2, x.abs() ** 0.5, x.abs() ** -0.5, 2**x, x.abs() ** x, x**0, x**1, 1**x),
        "float_power": lambda x: (x.abs().float_power(1.5), torch.float_power(2, x)),
        "ldexp": lambda x: torch.ldexp(x, torch.arange(8)),
        "comparisons": lambda x: (x > 0, x >= x.flip(1), x < 0.5, x <= 0, x == x.flip(2), x != 0, x.isclose(x + 1e-9)),
        "logic": lambda x: ((x > 0) & (x < 1), (x > 0) | (x < -1), (x > 0) ^ (x < 1), ~(x > 0), x.logical_not(), x.logical_and(x), x.logical_xor(x)),
        "finite": lambda x: (x.isnan(), x.isinf(), x.isfinite(), x.isposinf(), x.isneginf(), x.nan_to_num(), x.nan_to_num(1, 2, 3), x.isreal()),
        "where": lambda x: (x.where(x > 0, 0), torch.where(x > 0, x, -1.0), torch.where(x > 0, 1, 0), torch.where(x > 0, 1.0, x), torch.where(x > 0, x, x.flip(1))),
        "where of dtypes": lambda x: (torch.where(x > 0, x, x.double()), torch.where(x > 0, x.long(), x), torch.where(x > 0, 1.0, 0.0)),
        "masked_fill": lambda x: (x.masked_fill(x > 0, 3), x.masked_fill(x > 0, -torch.inf), x.masked_fill(x[:, :1] > 0, x.sum())),
        "maximum": lambda x: (torch.maximum(x, x.flip(1)), torch.minimum(x, weight(8)), torch.fmax(x, x.flip(1)), torch.fmin(x, x.flip(1)), torch.max(x, x.flip(1))),
        "heaviside": lambda x: torch.heaviside(x, weight(8)),
        "arithmetic": lambda x: (x + 1, 1 - x, x - x.flip(1), x * 2, x.add(x.flip(1), alpha=3), x.sub(x.flip(1), alpha=0.5), torch.rsub(x, 2, alpha=3)),
        "arithmetic of dtypes": lambda x: (x + x.double(), x * x.long(), x.long() + 1.5, x.long() / 2, (x > 0) + 1, (x > 0) * 2.5, (x > 0) + (x > 1)),
        "casts": lambda x: (x.double(), x.half(), (x * 9).long(), (x * 9).int(), (x * 9).to(torch.int8), x.bool(), (x > 0).float(), (x.abs() * 50).to(torch.uint8)),
        "gated": lambda x: (F.glu(x), F.silu(x[..., :4]) * x[..., 4:]),
        "deg2rad": lambda x: (x.deg2rad(), x.rad2deg()),
        "bessel": lambda x: torch.special.i0(x),
        "digamma": lambda x: (x.abs() + 0.5).digamma(),
        "ndtr": lambda x: (torch.special.ndtr(x), torch.special.log_ndtr(x)),
        "polynomial": lambda x: torch.special.polygamma(1, x.abs() + 1),
        "nextafter": lambda x: torch.nextafter(x, x + 1),
        "complex": lambda x: torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (4, 2))) * torch.polar(weight(4).abs(), weight(4))),
        "fft": lambda x: (torch.fft.rfft(x).abs(), torch.fft.fft(x, dim=1).real, torch.fft.fft2(x).real),
        "stft": lambda x: torch.fft.irfft(torch.fft.rfft(x, norm="ortho"), n=8, norm="ortho"),
        "angle": lambda x: (x.angle(), x.real, x.conj()),
    },
)  # fmt: skip

SHAPES = Table(
    (ROWS,),
    {
        "squeeze": lambda x: (x[0].squeeze(), x.squeeze(1), x.squeeze((1, 2)), x[:, :1].squeeze(1), x[:, :1].squeeze((1, 2)), x[0, :1].squeeze()),
        "squeeze of a size that may be 1": lambda x: (x.squeeze(0), x[:, :1].squeeze((0, 1)), x[:, :1].squeeze(), x.squeeze((-3, 1)) + 1),
        "squeeze of sizes that are not 1": lambda x: (x.squeeze(1), x.squeeze(2), x.unsqueeze(1).squeeze(3)),
        "implicit expand": lambda x: torch.ops.aten.expand.default(x.unsqueeze(1), [-1, 3, -1, -1], implicit=True).reshape(-1, 18, 8),
        "unsqueeze": lambda x: (x.unsqueeze(0), x.unsqueeze(-1), x[:, None, :, None]),
        "view": lambda x: (x.view(-1, 8), x.view(x.shape[0], -1), x.reshape(-1), x.view(x.shape[0], 2, 3, -1), x.view_as(x), x.flatten(), x.ravel()),
        "flatten": lambda x: (x.flatten(1), x.flatten(0, 1), x.sum().flatten(), x.unflatten(1, (2, 3)), x.unflatten(-1, (-1, 2))),
        "transpose": lambda x: (x.mT, x.transpose(0, 1), x.permute(2, 0, 1), x.movedim(0, -1), x.moveaxis((0, 1), (2, 0)), x.swapaxes(0, 2), x.swapdims(1, 2), x[0].t(), x[0, 0].t(), x.adjoint()),
        "expand": lambda x: (x[:, :1].expand(-1, 5, -1), x.expand(3, -1, -1, -1), x[:, :1].expand_as(x), x[:, :1].broadcast_to(x.shape), x.sum().expand(2, 3)),
        "repeat": lambda x: (x.repeat(1, 2, 1), x.repeat(2, 1, 1, 3), x.tile(2), x.tile((2, 1, 1, 1)), x.repeat_interleave(2, 1), x.repeat_interleave(2)),
        "repeat_interleave by a tensor": lambda x: x.repeat_interleave(torch.tensor([1, 0, 2, 1, 3, 1]), 1, output_size=8),
        "cat": lambda x: (torch.cat([x, x[:, :2]], 1), torch.cat([x, x], -1), torch.cat([x, x.double()], 0), torch.cat([x.long(), x], 1), torch.cat([x])),
        "stack": lambda x: (torch.stack([x, -x]), torch.stack([x, -x], -1), torch.hstack([x, x]), torch.vstack([x, x]), torch.dstack([x, x]), torch.column_stack([x, x])),
        "concat": lambda x: (torch.concat([x, x], 1), torch.concatenate([x, x], -1)),
        "split": lambda x: (*x.split(4, 1), *x.split([1, 7], -1), *x.chunk(3, 1), *x.chunk(4, 1), *x.tensor_split(4, 1), *x.tensor_split((1, 3), 1)),
        "unbind": lambda x: (*x.unbind(1), *x.hsplit(2), *x.dsplit(2)),
        "slices": lambda x: (x[:, 1:-1], x[..., ::2], x[:, 1::3], x[:, -3:], x[:, :99], x[:, 5:2], x[:, -1], x[..., -2:-1], x[:, 2:3, 1]),
        "narrow": lambda x: (x.narrow(1, 1, 3), x.narrow(2, -3, 2), x.select(1, -1), x.select(-1, 2)),
        "flip": lambda x: (x.flip(1), x.flip((0, 2)), x.fliplr(), x.flipud()),
        "roll": lambda x: (x.roll(1, 1), x.roll(-2, 1), x.roll((1, -1), (1, 2)), x.roll(3), x.roll(9, 1)),
        "triangles": lambda x: (x.tril(), x.triu(1), x.tril(-1), x.triu(-2), torch.tril(torch.ones(6, 6)), (x > 0).tril(), x.long().triu()),
        "triangular indices": lambda x: (x[:, torch.triu_indices(6, 6)[0]], torch.tril_indices(3, 4)),
        "diagonals": lambda x: (x.diagonal(dim1=1, dim2=2), x.diagonal(1, 1, 2), x[0, 0].diag(), x.diag_embed(), x[0].diagonal(-1)),
        "trace": lambda x: x[0].trace(),
        "block_diag": lambda x: torch.block_diag(x[0], x[0, :2]),
        "meshgrid": lambda x: (*torch.meshgrid(x[0, 0], x[0, 1], indexing="ij"), *torch.meshgrid(x[0, 0], x[0, 1], indexing="xy")),
        "factories": lambda x: (torch.zeros_like(x), torch.ones_like(x, dtype=torch.long), torch.full_like(x, 2), x.new_zeros(3), x.new_full((2,), 5), torch.empty_like(x).fill_(2.0), torch.eye(3), torch.eye(3, 4)),
        "factories of sizes": lambda x: (torch.arange(x.shape[0]), torch.arange(0.5, x.shape[0], 0.5), torch.zeros(x.shape[0]), torch.ones(x.shape[0], 2, dtype=torch.bool), torch.full((x.shape[0],), x.shape[0]), torch.arange(x.shape[0], 0, -1)),
        "linspace": lambda x: (torch.linspace(0, 1, 5), torch.linspace(-1, x.shape[0], 7), torch.logspace(0, 1, 3), torch.linspace(3, 1, 1)),
        "scalar_tensor": lambda x: (torch.scalar_tensor(2.5), torch.tensor(x.shape[0]), torch.tensor(True)),
        "atleast": lambda x: (torch.atleast_3d(x[0]), torch.atleast_2d(x[0, 0]), torch.atleast_1d(x.sum())),
        "windows": lambda x: (torch.hann_window(8), torch.hamming_window(8), x * torch.hann_window(8, periodic=False)),
        "clones": lambda x: (x.clone(), x.contiguous(), x.detach(), x.to(x.dtype), x.alias() if hasattr(x, "alias") else x, x.mT.contiguous()),
        "as_strided": lambda x: x[0].as_strided((3, 2), (8, 1), 1),
        "ravel_and_back": lambda x: x.mT.reshape(x.shape[0], 6, 8),
        "pad_sequence": lambda x: torch.nn.utils.rnn.pad_sequence([x[0, :2], x[0, :4]], batch_first=True),
        "broadcast_tensors": lambda x: torch.broadcast_tensors(x[:, :1], weight(6, 1)),
    },
)  # fmt: skip

INDICES = Table(
    (ROWS,),
    {
        "embedding": lambda x: (F.embedding(x.abs().long().clamp(max=9), weight(10, 3)), F.embedding(x.abs().int().clamp(max=9), weight(10, 3), padding_idx=0)),
        "gather": lambda x: (x.gather(1, x.argsort(1)), x.gather(2, x.argmax(2, keepdim=True)), x.gather(1, torch.zeros(1, 2, 3, dtype=torch.long))),
        "take": lambda x: x.take(torch.tensor([0, 3])),
        "index_select": lambda x: (x.index_select(1, torch.tensor([0, 3, 3])), x.index_select(-1, torch.tensor([5], dtype=torch.int32))),
        "index": lambda x: (x[:, [0, 2]], x[:, torch.tensor([-1, 0])], x[torch.arange(x.shape[0]), 0], x[:, [0, 1], [2, 3]], x[..., [1, 0]], x[:, :, torch.tensor([[0, 1], [2, 3]])]),
        "index apart": lambda x: (x[torch.tensor([0]), :, torch.tensor([1])], x[:, None, [1, 2]], x.unflatten(2, (2, 4))[:, [0, 1], :, [2, 3]]),
        "index by bools": lambda x: (x[x > 0], x[0][:, torch.tensor([True, False] * 4)], x[(x > 0).any(-1)]),
        "index of negative": lambda x: (x[:, -1], x[:, torch.tensor(-2)], x[:, torch.arange(-1, -4, -1)]),
        "index_put": lambda x: (x.index_put((torch.tensor([0]), torch.tensor([1])), torch.tensor(5.0)), x.index_put((torch.zeros(2, dtype=torch.long),), weight(6, 8), accumulate=True)),
        "setitem": lambda x: setitem(x),
        "setitem by a mask": lambda x: setitem_mask(x),
        "setitem by indices": lambda x: setitem_indices(x),
        "scatter": lambda x: (torch.zeros_like(x).scatter(1, x.argsort(1), x), x.scatter(1, torch.zeros_like(x[:, :1]).long(), 9.0), torch.zeros_like(x).scatter(2, x.argsort(2)[..., :3], 1.0)),
        "scatter_add": lambda x: (torch.zeros_like(x).scatter_add(1, (x > 0).long(), x), x.scatter_add(2, (x > 0).long(), x)),
        "scatter_reduce": lambda x: tuple(
            x.scatter_reduce(1, (x > 0).long(), x.flip(2), kind, include_self=own) for kind in ("sum", "prod", "amax", "amin") for own in (True, False)
        ),
        "scatter_reduce mean": lambda x: x.scatter_reduce(1, (x > 0).long(), x.flip(2), "mean"),
        "scatter with a reduction": lambda x: x.scatter(1, (x > 0).long()[:, :1], x[:, :1], reduce="add"),
        "index_add": lambda x: (x.index_add(1, torch.tensor([0, 0, 3]), x[:, :3]), x.index_add(1, torch.tensor([1]), x[:, :1], alpha=-2)),
        "index_copy": lambda x: (x.index_copy(1, torch.tensor([4, 0]), x[:, :2]), x.index_fill(1, torch.tensor([0, -1]), 7.0)),
        "index_reduce": lambda x: x.index_reduce(1, torch.tensor([0, 0, 3]), x[:, :3], "amax"),
        "masked_select": lambda x: x.masked_select(x > 0),
        "masked_scatter": lambda x: x.masked_scatter(x > 0, x.flip(1)),
        "slice_scatter": lambda x: (x.slice_scatter(x[:, :2], 1, 2, 4), x.select_scatter(x[:, 0], 1, -1), x.slice_scatter(x[:, :3], 1, 0, 6, 2)),
        "bucketize": lambda x: (torch.bucketize(x, constant(-1.0, 0.0, 1.0)), torch.bucketize(x, constant(-1.0, 0.0, 1.0), right=True), torch.searchsorted(constant(-1.0, 0.0, 1.0), x)),
        "one_hot": lambda x: (F.one_hot(x.abs().long().clamp(max=4), 5), F.one_hot((x > 0).long(), 2).float()),
        "isin": lambda x: torch.isin(x.long(), torch.tensor([0, 1])),
        "bincount": lambda x: x.abs().long().flatten().bincount(minlength=6),
        "tensor indices": lambda x: (x[0].index_select(0, x[0, :, 0].argsort()), x[0][x[0, :, 0].argsort()[:2]]),
        "write through a view": lambda x: through_a_view(x),
        "write in a loop": lambda x: in_a_loop(x),
    },
)  # fmt: skip


def setitem(x: Tensor) -> tuple[Tensor, ...]:
    y, z = x.clone(), torch.zeros_like(x)
    y[:, 0] = 1.0
    y[:, 1:3, ::2] = x[:, 3:5, ::2]
    y[..., -1] *= 2
    z[:, -2:] = x[:, :2]
    z[0, 0, 0] = 4.0
    return y, z


def setitem_mask(x: Tensor) -> tuple[Tensor, ...]:
    y, z = x.clone(), x.clone()
    y[y > 0] = 0.5
    z[:, (weight(6) > 0)] = -1.0
    return y, z


def setitem_indices(x: Tensor) -> tuple[Tensor, ...]:
    y, z = x.clone(), x.clone()
    y[:, [0, 2]] = x[:, [1, 3]]
    z[torch.arange(x.shape[0]), x.argmax(1)[:, 0]] = 0.0
    return y, z


def through_a_view(x: Tensor) -> Tensor:
    rows = x.clone().view(-1, 8)
    rows[:, 0] = 1.0
    rows.mul_(2)
    return rows.view(x.shape)


def in_a_loop(x: Tensor) -> Tensor:
    total = torch.zeros_like(x[:, 0])
    steps = []
    for step in range(x.shape[1]):
        total += x[:, step]
        steps.append(total.clone())
    return torch.stack(steps, 1)


INTEGER = Table(
    INTEGERS,
    {
        "arithmetic": lambda i, j: (i + j, i - j, i * j, i + 3, 3 - i, i * -2, -i, i.abs(), i.sign(), torch.rsub(i, 1), i.neg()),
        "one minus": lambda i, j: (1.0 - i, 1 - i, (1.0 - i) * -1e4, 1.0 - i.int(), 1.0 - (i > 0).float(), 1.0 - (i > 0).long(), 2.5 - i),
        "with floats": lambda i, j: (i + 0.5, i * 0.5, i - 0.5, i / j.abs().add(1), i / 2, 1 / (i.abs() + 1), i**0.5 if False else i.abs() ** 0.5, i // 2.0, i % 2.5),
        "floor division": lambda i, j: (i // 3, i // -3, i // (j.abs() + 1), torch.div(i, 3, rounding_mode="floor"), torch.floor_divide(i, -4), -i // 3, torch.div(i, 3, rounding_mode="trunc"), torch.div(i, -(j.abs() + 1), rounding_mode="trunc")),
        "remainder": lambda i, j: (i % 3, i % -3, i % (j.abs() + 1), i % -(j.abs() + 1), i.fmod(3), i.fmod(-3), torch.fmod(i, j.abs() + 1), torch.remainder(7, j.abs() + 1)),
        "pow": lambda i, j: (i**2, i**3, i**0, i**1, 2 ** j.abs(), i ** j.abs().clamp(max=3), i**2.0, i.abs() ** 0.5, i.square()),
        "comparisons": lambda i, j: (i > j, i >= 2, i < j, i <= -1, i == j, i != 0, i > 0.5, i.eq(2), (i > 0) == (j > 0), (i > 0) > (j > 0)),
        "bits": lambda i, j: (i & j, i | j, i ^ j, ~i, i & 3, i | 1, i ^ -1, i.bitwise_not(), (i > 0).bitwise_and(j > 0)),
        "shifts": lambda i, j: (i << 2, i >> 1, i << j.abs().clamp(max=5), i >> j.abs().clamp(max=5), i.int() >> 2, i.to(torch.uint8) >> 1),
        "min and max": lambda i, j: (torch.maximum(i, j), torch.minimum(i, j), i.clamp(-3, 4), i.clamp(min=0), i.clamp(max=j), i.amax(1), i.amin(1), i.max(), i.min(1)[0], i.relu()),
        "reductions": lambda i, j: (i.sum(), i.sum(1), i.prod(1), i.float().mean(1), i.sum(1, dtype=torch.float32), i.cumsum(1), i.any(1), i.all(1), i.argmax(1), i.argmin(1), i.cumprod(1)),
        "sorting": lambda i, j: (i.sort(1)[0], i.sort(1, descending=True)[0], i.topk(3)[0], i.sort(dim=1, stable=True)[1], i.unique() if False else i.argsort(dim=1, stable=True)),
        "bools": lambda i, j: ((i > 0) + (j > 0), (i > 0) * (j > 0), (i > 0).sum(1), (i > 0).float().mean(1), (i > 0).int() - 1, (i > 0) * i, (i > 0).cumsum(1), (i > 0).any(), ~(i > 0), (i > 0).long() * 2 - 1),
        "bool arithmetic": lambda i, j: ((i > 0) & True, (i > 0) | False, (i > 0) ^ True, (i > 0) + 1, (i > 0) * 2.0, (i > 0) / 2, (i > 0).eq(True), 1 - (i > 0).int(), (i > 0).logical_or(i), torch.where(i > 0, True, i < -3)),
        "int32": lambda i, j: (i.int() + j.int(), i.int() * 2, i.int() // 3, i.int() % 3, i.int() / 2, i.int().sum(1), i.int().float(), -i.int(), i.int().abs(), i.int() + j, i.int().clamp(0, 2)),
        "small dtypes": lambda i, j: (i.to(torch.int8) + 1, i.to(torch.uint8) + 1, i.to(torch.int16) * 2, i.to(torch.int8) * i.to(torch.int8), i.to(torch.uint8) // 3, i.to(torch.int8) % 3, i.to(torch.uint8) > 3, i.to(torch.int8).float(), i.to(torch.int16) - j.to(torch.int16)),
        "overflow": lambda i, j: ((i * 100).to(torch.int8), (i * 1000).to(torch.uint8), i.to(torch.uint8) * 40, i.to(torch.int8) * 40, i.to(torch.uint8).sum(1), (i * 2**31).int()),
        "masked": lambda i, j: (i.masked_fill(i > 0, -1), torch.where(i > 0, i, j), torch.where(i > 0, i, 0), torch.where(i > 0, 1.0, 0.0), i.where(i > 0, 7), torch.where(i > 0, i, 0.5)),
        "shapes": lambda i, j: (torch.cat([i, j], 1), torch.stack([i, j]), i.repeat(1, 2), i.flip(1), i.roll(1, 1), i.tril(), i[:, None].expand(-1, 3, -1), F.pad(i, (1, 1), value=-1), F.pad(i > 0, (1, 0))),
        "lookups": lambda i, j: (F.embedding(i.abs(), weight(12, 3)), F.one_hot(i.abs(), 12), weight(12)[i.abs()], i.gather(1, j.abs() % 6), torch.zeros(1, 12).expand(i.shape[0], 12).scatter(1, i.abs(), 1.0)),
        "position ids": lambda i, j: ((i.ne(1).int().cumsum(1).type_as(i) * i.ne(1).int()).long() + 1, torch.arange(i.shape[1]).expand_as(i), (i > 0).long().cumsum(-1) - 1, (i == 3).nonzero()),
        "masks": lambda i, j: ((1.0 - (i > 0)[:, None, None].float()) * torch.finfo(torch.float32).min, (1 - (i > 0)[:, None, None].to(torch.float32)) * -1e4, (i[:, :, None] == i[:, None, :]).float(), (1.0 - i[:, None].clamp(0, 1)) * -10000.0),
        "relative positions": lambda i, j: relative_positions(i),
        "gcd": lambda i, j: (torch.gcd(i, j), torch.lcm(i, j)),
        "isin": lambda i, j: torch.isin(i, torch.tensor([1, 3])),
        "diff": lambda i, j: i.diff(dim=1),
        "bincount": lambda i, j: i.abs().flatten().bincount(minlength=12),
        "matmul": lambda i, j: (i @ j.mT, i.int() @ j.int().mT),
        "embedding_bag": lambda i, j: (F.embedding_bag(i.abs(), weight(12, 3)), F.embedding_bag(i.abs(), weight(12, 3), mode="sum"), F.embedding_bag(i.abs(), weight(12, 3), mode="max")),
        "dtype of sums": lambda i, j: (i.int().sum(1), (i > 0).sum(1, dtype=torch.int32), i.to(torch.uint8).cumsum(1), i.to(torch.int8).prod(1)),
    },
)  # fmt: skip


def relative_positions(i: Tensor) -> Tensor:
    """As T5: buckets of distances, exact when near and logarithmic when far."""
    distance = torch.arange(i.shape[1])[None] - torch.arange(i.shape[1])[:, None] + i[:, :, None] * 0
    bucket = (distance > 0).long() * 4
    distance = distance.abs()
    large = 2 + (torch.log(distance.float() / 2) / 1.4 * 2).long()
    return bucket + torch.where(distance < 2, distance, torch.min(large, torch.full_like(large, 3)))


NOT_IN_ONNX = {
    "adaptive_max_pool2d uneven": "adaptive_max_pool2d",
    "bessel": "bessel_i0",
    "digamma": "digamma",
    "erfinv": "erf_inv",
    "gcd": "gcd",
    "index_reduce": "index_reduce",
    "lgamma": "lgamma",
    "masked_select": "masked_select",
    "mode": "mode",
    "nextafter": "nextafter",
    "polynomial": "polygamma",
}
"""Functions that ONNX's exporter has no form for, with the op that its reason names."""

TABLES: Mapping[str, Table] = {
    "convolutions": CONVOLUTIONS,
    "convolutions of lines": CONVOLUTIONS_1D,
    "convolutions of volumes": CONVOLUTIONS_3D,
    "images": POOLS,
    "reductions": REDUCTIONS,
    "norms and products": NORMS,
    "elementwise": ELEMENTWISE,
    "shapes": SHAPES,
    "indices": INDICES,
    "integers": INTEGER,
    "float64": DOUBLES,
    "float16": HALVES,
    "of no rows": EMPTY,
}

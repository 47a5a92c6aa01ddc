"""Replaces aliases of ops with the canonical op: `aten.multiply` with `aten.mul`, `aten.concat` with `aten.cat`.

torch.export keeps the name that the model called. Rules, the TorchScript compiler and the ONNX exporter know only the
canonical name, so aliases are replaced immediately after the capture.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fuseconv.graph.aten import facts

_NAMES: Mapping[str, str] = {
    "__and__": "bitwise_and",
    "__iand__": "bitwise_and_",
    "__ior__": "bitwise_or_",
    "__ixor__": "bitwise_xor_",
    "__or__": "bitwise_or",
    "__xor__": "bitwise_xor",
    "absolute": "abs",
    "adjoint": "mH",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "clip": "clamp",
    "concat": "cat",
    "concatenate": "cat",
    "det": "linalg_det",
    "divide": "div",
    "fix": "trunc",
    "ger": "outer",
    "greater": "gt",
    "greater_equal": "ge",
    "inverse": "linalg_inv",
    "less": "lt",
    "less_equal": "le",
    "linalg_matmul": "matmul",
    "max": "maximum",
    "matrix_exp": "linalg_matrix_exp",
    "min": "minimum",
    "moveaxis": "movedim",
    "multiply": "mul",
    "negative": "neg",
    "not_equal": "ne",
    "row_stack": "vstack",
    "slogdet": "linalg_slogdet",
    "special_digamma": "digamma",
    "special_erf": "erf",
    "special_erfc": "erfc",
    "special_erfinv": "erfinv",
    "special_exp2": "exp2",
    "special_expit": "sigmoid",
    "special_expm1": "expm1",
    "special_gammainc": "igamma",
    "special_gammaincc": "igammac",
    "special_gammaln": "lgamma",
    "special_i0": "i0",
    "special_log1p": "log1p",
    "special_log_softmax": "log_softmax",
    "special_logit": "logit",
    "special_logsumexp": "logsumexp",
    "special_multigammaln": "mvlgamma",
    "special_polygamma": "polygamma",
    "special_psi": "digamma",
    "special_round": "round",
    "special_sinc": "sinc",
    "special_softmax": "softmax",
    "special_xlogy": "xlogy",
    "subtract": "sub",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "true_divide": "div",
}
"""Maps each alias to the canonical name, without the trailing underscore of in-place ops."""


@cache
def canonical(op: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """Returns the canonical op for an alias. Returns any other op unchanged.

    If the canonical op has several overloads, returns the overload whose arguments have the same types and mutability
    as the alias's arguments, or the alias itself if there is no such overload.
    """
    namespace, name = op._schema.name.split("::")
    in_place = "_" if name.endswith("_") and not name.endswith("__") else ""
    other = _NAMES.get(name) or _NAMES.get(name.removesuffix("_"))
    if namespace != "aten" or other is None:
        return op
    packet = getattr(torch.ops.aten, other if other.endswith("_") else other + in_place, None)
    for overload in packet.overloads() if packet is not None else ():
        found: torch._ops.OpOverload = getattr(packet, overload)
        if _types(found) == _types(op):
            return found
    return op


def _types(op: torch._ops.OpOverload) -> list[Any]:
    """Returns a key that identifies an overload: the type of each argument, and whether the op mutates it."""
    return [(str(argument.type), argument.name in facts(op).writes) for argument in op._schema.arguments]


def name_ops_once(exported: ExportedProgram) -> None:
    """Modifies a program in place: replaces all calls of aliases, also in subgraphs, with calls of canonical ops."""
    for module in exported.graph_module.modules():
        if not isinstance(module, GraphModule):
            continue
        for node in module.graph.nodes:
            if not isinstance(node.target, torch._ops.OpOverload):
                continue
            op = canonical(node.target)
            if op is node.target:
                continue
            names = zip(node.target._schema.arguments, op._schema.arguments, strict=True)
            renamed = {old.name: new for old, new in names}
            # An argument may be positional-only in one of the two ops and keyword-only in the other.
            given = {**dict(zip([new.name for new in op._schema.arguments], node.args, strict=False))}
            given |= {renamed[key].name: value for key, value in node.kwargs.items()}
            for old, new in zip(node.target._schema.arguments, op._schema.arguments, strict=True):
                if old.has_default_value() and not new.has_default_value():
                    given.setdefault(new.name, old.default_value)
            positional = [new.name for new in op._schema.arguments if not new.kwarg_only]
            ready = [name for at, name in enumerate(positional) if all(one in given for one in positional[: at + 1])]
            node.args = tuple(given.pop(name) for name in ready)
            node.kwargs = given
            node.target = op
        module.recompile()

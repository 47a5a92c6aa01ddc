"""Replaces attention with dynamic sizes on CUDA with kernels that require no execution plan.

For f16 and bf16, PyTorch prefers cuDNN's attention. cuDNN builds an execution plan for every new size, which takes many
times as long as a call. If sizes are dynamic, this module therefore calls a specific kernel, which accepts new sizes
without preparation. With static sizes there is only one plan, so nothing is changed.

On Hopper, this is fuseconv's kernel (csrc/kernels/attention_sm90.cuh), for heads of up to 128 columns. For wider heads,
for few queries without a mask, and on other GPUs, it is one of PyTorch's: Flash Attention or, with a mask, the
memory-efficient kernel.

All of them require the width of a head to be a multiple of 8, and Flash Attention one width for all heads. Other heads
are padded with zeros, which change no score, and the result is cut. fuseconv's kernel and Flash Attention accept fewer
heads of keys and values than of queries (grouped-query attention). For the memory-efficient kernel, these heads are
repeated.

Source: aten/src/ATen/native/transformers/attention.cpp of torch 2.13, which selects a kernel and pads masks and heads.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from fuseconv.graph.aliases import Aliases
from fuseconv.graph.all_sizes import GuardError, run_for_all_sizes
from fuseconv.graph.nodes import arguments
from fuseconv.graph.proved_sizes import same_size, same_sizes
from fuseconv.ops import attention, causal_attention
from fuseconv.program.captured import Program
from fuseconv.program.graph_copy import copied, with_graph
from fuseconv.rulebook import attention_functions
from fuseconv.rulebook.attention_functions import ALIGNMENT, FLASH_WIDEST

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_DTYPES = (torch.float16, torch.bfloat16)


def without_plans(program: Program) -> Program:
    """Returns a program in which each attention with dynamic sizes calls a specific kernel.

    The given program is not changed, and is returned if it needs no change. For attention that none of them supports,
    PyTorch still chooses the kernel.
    """
    if program.contract.device != "cuda" or not program.contract.dims():
        return program
    graph = named(program.exported, on_hopper=attention_functions.is_hopper())
    return program if graph is None else replace(program, exported=with_graph(program.exported, graph))


def named(exported: ExportedProgram, *, on_hopper: bool) -> Graph | None:
    """Returns a copy of a program's graph that calls the kernels directly, or None if there is nothing to change."""
    graph = exported.graph
    if not any(_takes(node) for node in graph.nodes):
        return None
    aliases = Aliases(graph, exported.graph_module)
    written = frozenset(node.name for node in graph.nodes if aliases.is_written(node))
    naming = _Naming(copied(graph), on_hopper, written)
    for node in list(naming.graph.nodes):
        if _takes(node):
            naming.name(node)
    return naming.graph


def _takes(node: Node) -> bool:
    """Returns whether a node is attention with dynamic sizes that one of the kernels can compute."""
    if node.target is not _ATTENTION:
        return False
    given = arguments(node)
    q, k, v = (given[name].meta["val"] for name in ("query", "key", "value"))
    # The batch is the same in all three. PyTorch broadcasts a single head of keys, which all queries share then.
    heads = [k.shape[1]]
    return bool(
        any(isinstance(size, torch.SymInt) for x in (q, k) for size in x.shape)
        and q.dim() == k.dim() == v.dim() == 4
        and q.dtype in _DTYPES
        and same_sizes([q.shape[0], q.shape[3]], [k.shape[0], k.shape[3]])
        and same_sizes(k.shape[:3], v.shape[:3])
        and (same_sizes([q.shape[1]], heads) or ((given["enable_gqa"] or heads == [1]) and _group(q, k) > 0))
        and all(isinstance(width, int) and 0 < width <= FLASH_WIDEST for width in (q.shape[3], v.shape[3]))
        and given["dropout_p"] == 0
        and _supports(given, q, k)
    )


def _aligned(width: int) -> int:
    """Returns the width of heads with this many columns once they are padded."""
    return math.ceil(width / ALIGNMENT) * ALIGNMENT


def _group(q: torch.Tensor, k: torch.Tensor) -> int:
    """Returns how many heads of queries share a head of keys, or 0 if the numbers are dynamic or do not divide."""
    heads, shared = q.shape[1], k.shape[1]
    known = isinstance(heads, int) and isinstance(shared, int) and shared > 0
    return heads // shared if known and heads % shared == 0 else 0


def _supports(given: dict[str, Any], q: torch.Tensor, k: torch.Tensor) -> bool:
    """Returns whether the kernels support the mask of an attention node, or attention without a mask."""
    if given["attn_mask"] is None:
        return not given["is_causal"] or same_size(q.shape[2], k.shape[2])
    mask = given["attn_mask"].meta["val"]
    scores = [*q.shape[:3], k.shape[2]][-mask.dim() :]
    fits = 0 < mask.dim() <= 4 and all(
        same_size(size, wanted) or (size == 1 and isinstance(size, int))
        for size, wanted in zip(mask.shape[:-1], scores[:-1], strict=True)
    )
    is_wide = fits and same_size(mask.shape[-1], k.shape[2])
    return is_wide and mask.dtype in (torch.bool, q.dtype) and not given["is_causal"]


def _is_for_hopper(given: dict[str, Any]) -> bool:
    """Returns whether fuseconv's kernel for Hopper computes an attention node, and not too few queries."""
    q, v = (given[name].meta["val"] for name in ("query", "value"))
    has_few = (
        isinstance(q.shape[2], int) and q.shape[2] < attention_functions.FEW_QUERIES and given["attn_mask"] is None
    )
    return max(q.shape[3], v.shape[3]) <= attention_functions.WIDEST and not has_few


@dataclass
class _Naming:
    """Replaces attention nodes in a graph, and prepares a mask that several layers share only once.

    A mask that the graph writes in place is prepared for each layer. `written` contains the names of such values.
    """

    graph: Graph
    on_hopper: bool
    written: frozenset[str]
    _masks: dict[tuple[Node, torch.dtype], Node] = field(default_factory=dict)
    _padded: dict[tuple[Node, torch.dtype], Node] = field(default_factory=dict)

    def name(self, node: Node) -> None:
        given = arguments(node)
        if given["attn_mask"] is not None and given["attn_mask"].name in self.written:
            self._forget_mask(given)
        with self.graph.inserting_before(node):
            before = node.prev
            try:
                result = (
                    self._for_hopper(given) if self.on_hopper and _is_for_hopper(given) else self._by_pytorch(given)
                )
            except GuardError:
                self._forget_mask(given)
                while node.prev is not before:
                    self.graph.erase_node(node.prev)
                return
        for key in ("stack_trace", "nn_module_stack", "custom"):
            if key in node.meta:
                result.meta[key] = node.meta[key]
        node.replace_all_uses_with(result)
        self.graph.erase_node(node)

    def _forget_mask(self, given: dict[str, Any]) -> None:
        for made in (self._masks, self._padded):
            made.pop((given["attn_mask"], given["query"].meta["val"].dtype), None)

    def _for_hopper(self, given: dict[str, Any]) -> Node:
        """Calls fuseconv's attention."""
        q, k, v = (given[name] for name in ("query", "key", "value"))
        own, width = q.meta["val"].shape[-1], v.meta["val"].shape[-1]
        scale = own**-0.5 if given["scale"] is None else given["scale"]
        q, k, v = (self._in_rows(self._widened(one, _aligned(one.meta["val"].shape[-1]))) for one in (q, k, v))
        if given["is_causal"]:
            result = self._call(causal_attention.overload, q, k, v, scale)
        else:
            mask = given["attn_mask"]
            bias = None if mask is None else self._aligned_bias(mask, q.meta["val"].dtype)
            result = self._call(attention.overload, q, k, v, bias, scale)
        return self._narrowed(result, width)

    def _by_pytorch(self, given: dict[str, Any]) -> Node:
        """Calls Flash Attention or, with a mask, the memory-efficient kernel."""
        ops = torch.ops.aten
        operands = [given[name] for name in ("query", "key", "value")]
        own, _, width = (operand.meta["val"].shape[-1] for operand in operands)
        common = _aligned(max(own, width))
        scale = own**-0.5 if given["scale"] is None and own < common else given["scale"]
        q, k, v = (self._dense(self._widened(operand, common)) for operand in operands)
        if given["attn_mask"] is None:
            kernel = ops._scaled_dot_product_flash_attention.default
            results = self._call(kernel, q, k, v, 0.0, given["is_causal"], False, scale=scale)
        else:
            k, v = (self._repeated(operand, q) for operand in (k, v))
            bias = self._expanded(self._aligned_bias(given["attn_mask"], q.meta["val"].dtype), q)
            kernel = ops._scaled_dot_product_efficient_attention.default
            results = self._call(kernel, q, k, v, bias, False, 0.0, False, scale=scale)
        result = self._call(operator.getitem, results, 0)
        _forget_unused(results)
        return self._narrowed(result, width)

    def _narrowed(self, result: Node, width: int) -> Node:
        """Returns a result without the columns that `_widened` has added."""
        added = result.meta["val"].shape[-1] > width
        narrow: Node = self._call(torch.ops.aten.slice.Tensor, result, 3, 0, width) if added else result
        return narrow

    def _widened(self, operand: Node, width: int) -> Node:
        """Returns an operand whose heads have this width, with zeros behind if they are narrower."""
        missing = width - operand.meta["val"].shape[-1]
        return self._call(torch.ops.aten.constant_pad_nd.default, operand, [0, missing]) if missing else operand

    def _repeated(self, operand: Node, q: Node) -> Node:
        """Returns keys or values with as many heads as the queries have."""
        group = _group(q.meta["val"], operand.meta["val"])
        return self._call(torch.ops.aten.repeat_interleave.self_int, operand, group, 1) if group > 1 else operand

    def _in_rows(self, operand: Node) -> Node:
        """Returns an operand whose rows begin at multiples of 16 bytes, as TMA requires."""
        value = operand.meta["val"]
        starts = [value.storage_offset(), *value.stride()[:-1]]
        whole = same_sizes([start % ALIGNMENT for start in starts], [0] * len(starts))
        return self._dense(operand, also=whole)

    def _dense(self, operand: Node, *, also: bool = True) -> Node:
        """Returns an operand in which the elements of a head are adjacent in memory. It is a copy if not `also`."""
        if also and same_size(operand.meta["val"].stride(-1), 1):
            return operand
        dense: Node = self._call(torch.ops.aten.contiguous.default, operand)
        return dense

    def _bias(self, mask: Node, dtype: torch.dtype) -> Node:
        """Returns the mask as a tensor that is added to the scores."""
        if mask.meta["val"].dtype != torch.bool:
            return mask
        if (mask, dtype) not in self._masks:
            ops = torch.ops.aten
            zeros = self._call(ops.zeros_like.default, mask, dtype=dtype)
            hidden = self._call(ops.logical_not.default, mask)
            self._masks[mask, dtype] = self._call(ops.masked_fill.Scalar, zeros, hidden, -math.inf)
        return self._masks[mask, dtype]

    def _aligned_bias(self, mask: Node, dtype: torch.dtype) -> Node:
        """Returns the mask as a tensor that is added to the scores, whose rows begin at multiples of 16 bytes."""
        if (mask, dtype) not in self._padded:
            self._padded[mask, dtype] = self._pad(mask, dtype)
        return self._padded[mask, dtype]

    def _expanded(self, bias: Node, q: Node) -> Node:
        """Returns a mask [B, H, L, S]."""
        sizes = [*(self._size(q, axis) for axis in range(3)), self._size(bias, bias.meta["val"].dim() - 1)]
        expanded: Node = self._call(torch.ops.aten.expand.default, bias, sizes)
        return expanded

    def _pad(self, mask: Node, dtype: torch.dtype) -> Node:
        ops, last = torch.ops.aten, mask.meta["val"].dim() - 1
        bias = self._bias(mask, dtype)
        keys = self._size(mask, last)
        if isinstance(keys, int) and keys % ALIGNMENT == 0 and (self.on_hopper or bias is not mask):
            return bias  # fuseconv's kernel accepts any strides
        # This is -keys modulo the alignment, in a form that is not negative for torch's solver and in TorchScript.
        missing = self._call(operator.mod, self._call(operator.mul, keys, ALIGNMENT - 1), ALIGNMENT)
        whole = self._call(operator.add, keys, missing)
        sizes = [self._size(mask, axis) for axis in range(last)]
        room = self._call(ops.new_zeros.default, bias, [*sizes, whole])
        padded = self._call(ops.slice_scatter.default, room, bias, last, 0, keys)
        # The fake value is made separately: torch would ask for a bound on the storage that its solver cannot prove.
        slice_of = self.graph.call_function(ops.slice.Tensor, (padded, last, 0, keys))
        like = padded.meta["val"]
        make = partial(like.new_empty_strided, mask.meta["val"].shape, like.stride())
        slice_of.meta["val"] = run_for_all_sizes(like.fake_mode, make)
        # If the example needs no padding, AOTInductor takes the slice for the whole tensor. It keeps these sizes.
        sliced: Node = self._call(ops.expand.default, slice_of, [*sizes, keys])
        return sliced

    def _size(self, node: Node, axis: int) -> Any:
        size = node.meta["val"].shape[axis]
        return size if isinstance(size, int) else self._call(torch.ops.aten.sym_size.int, node, axis)

    def _call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Adds a call to the graph, computes its fake value, and returns the new node."""

        def value(argument: Any) -> Any:
            if isinstance(argument, list):
                return [value(one) for one in argument]
            return argument.meta["val"] if isinstance(argument, Node) else argument

        values = [value(one) for one in args]
        named_values = {name: value(one) for name, one in kwargs.items()}
        mode = next((one.fake_mode for one in values if isinstance(one, FakeTensor)), None)
        result = run_for_all_sizes(mode, partial(target, *values, **named_values))
        node = self.graph.call_function(target, args, kwargs)
        node.meta["val"] = result
        return node


def _forget_unused(results: Node) -> None:
    """Replaces the fake values of results that nothing uses, because torch.export cannot save all of them.

    The random state of Flash Attention is uint64, which torch 2.11 cannot save; and no torch saves a dynamic size among
    several results.
    """
    first, *others = results.meta["val"]
    results.meta["val"] = (first, *(0 if isinstance(one, int | torch.SymInt) else None for one in others))

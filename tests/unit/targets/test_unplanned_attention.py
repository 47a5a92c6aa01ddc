"""Attention of dynamic sizes names a kernel that needs no plan, and computes the same."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support import programs
from torch import Tensor, nn
from torch._export.serde import serialize
from torch.export import Dim
from torch.fx import Graph, GraphModule, Interpreter
from torch.nn.functional import scaled_dot_product_attention

from fuseconv import ops
from fuseconv.pipeline.convert import convert
from fuseconv.program.captured import Program
from fuseconv.program.graph_copy import with_graph
from fuseconv.rulebook.attention_functions import ALIGNMENT
from fuseconv.targets import unplanned_attention
from fuseconv.targets.unplanned_attention import named

FLASH = torch.ops.aten._scaled_dot_product_flash_attention.default
EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention.default
OWN, CAUSAL = ops.attention.overload, ops.causal_attention.overload
BATCH, TOKENS = Dim("batch", min=1, max=8), Dim("tokens", min=2, max=64)


class Attention(nn.Module):
    """Two layers that share a mask."""

    def __init__(
        self,
        width: int = 16,
        causal: bool = False,
        added: bool = False,
        across: bool = False,
        heads: int = 2,
        own: int | None = None,
        broadcasts: bool = False,
    ) -> None:
        super().__init__()
        self.grouped = heads < 2 and not broadcasts  # otherwise, a single head is broadcast
        self.broadcasts = broadcasts
        self.width, self.causal, self.added, self.across, self.heads = width, causal, added, across, heads
        self.own = width if own is None else own  # the width of queries and keys

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None and self.added:
            mask = torch.where(mask, 0.0, -1e4).to(x.dtype)
        for _ in range(2):
            if self.across:  # as after a convolution over the tokens
                x = x.transpose(1, 2).contiguous().transpose(1, 2)
            q, k, v = (y.unflatten(-1, (-1, self.width)).transpose(1, 2) for y in x.chunk(3, -1))
            q, k, v = q[..., : self.own], k[:, : self.heads, :, : self.own], v[:, : self.heads]
            y = scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal, enable_gqa=self.grouped)
            x = torch.cat([y.transpose(1, 2).flatten(2)] * 3, -1)
        return x


@cache
def captured(
    module: nn.Module, dtype: torch.dtype, mask: tuple[int, ...] | None, width: int = 16, lengths: Dim = TOKENS
) -> Any:
    """Captures a module with a mask of the given shape, once for all tests, which leave the program as it is."""
    tokens = 11 if mask is None else mask[-1]
    x = torch.randn(3, tokens, 3 * 2 * width, dtype=dtype)
    inputs = (x,) if mask is None else (x, torch.ones(mask, dtype=torch.bool))
    dims: tuple[Any, ...] = ({0: BATCH, 1: lengths},)
    if mask is not None:
        dims += ({0: BATCH} | {at: lengths for at, size in enumerate(mask) if at and size == tokens},)
    return programs.capture(module, *inputs, dims=dims)


class Kernels(Interpreter):
    """Computes the CUDA kernels by the composite op, and checks what they require of a bias."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in (FLASH, EFFICIENT, OWN, CAUSAL):
            assert [operand.stride(-1) for operand in args[:3]] == [1, 1, 1]
            assert all(operand.shape[-1] % ALIGNMENT == 0 for operand in args[:3])
        if target is FLASH:
            q, k, v, _, causal, _ = args
            grouped = q.shape[1] != k.shape[1]
            y = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=kwargs["scale"], enable_gqa=grouped)
            return (y,)
        if target is EFFICIENT:
            q, k, v, bias, *_ = args
            assert bias.shape == (*q.shape[:3], k.shape[2])
            assert bias.stride(3) == 1
            assert all(stride % ALIGNMENT == 0 for stride in bias.stride()[:3])
            return (scaled_dot_product_attention(q, k, v, bias, scale=kwargs["scale"]),)
        return super().call_function(target, args, kwargs)


def check(got: Tensor, module: Attention, inputs: list[Tensor], on_hopper: bool) -> None:
    """Checks a result on the CPU, where PyTorch has one kernel for heads of one width, and another for others."""
    eager = module(*inputs)
    if module.own == module.width and not on_hopper and not module.broadcasts:
        torch.testing.assert_close(got, eager, atol=0, rtol=0)
    fp64 = module(inputs[0].double(), *inputs[1:])
    assert (got - fp64).abs().max() <= 2 * (eager - fp64).abs().max() + torch.finfo(eager.dtype).eps


def targets(graph: Graph) -> list[Any]:
    return [node.target for node in graph.nodes if node.op == "call_function"]


CASES = pytest.mark.parametrize(
    ("module", "shape"),
    [
        (Attention(), None),
        (Attention(causal=True), None),
        (Attention(), (3, 1, 1, 11)),
        (Attention(), (3, 1, 11, 11)),
        (Attention(added=True), (3, 1, 1, 11)),
        (Attention(heads=1), None),
        (Attention(heads=1, causal=True), None),
        (Attention(heads=1), (3, 1, 1, 11)),
        (Attention(heads=1, broadcasts=True), None),
        (Attention(heads=1, broadcasts=True), (3, 1, 11, 11)),
        (Attention(width=12), None),
        (Attention(width=12), (3, 1, 11, 11)),
        (Attention(width=3, heads=1, causal=True), None),
        (Attention(own=8), None),
        (Attention(width=12, own=5), (3, 1, 11, 11)),
    ],
    ids=[
        "plain",
        "causal",
        "keys",
        "pairs",
        "added",
        "grouped",
        "grouped-causal",
        "grouped-keys",
        "broadcast",
        "broadcast-pairs",
        "narrow",
        "narrow-pairs",
        "narrow-grouped",
        "unlike",
        "unlike-pairs",
    ],
)


DEVICES = pytest.mark.parametrize("on_hopper", [True, False], ids=["hopper", "other"])


def kernel_of(module: Attention, masked: bool, on_hopper: bool) -> Any:
    """Returns the op that is called."""
    if on_hopper:
        return CAUSAL if module.causal else OWN
    return EFFICIENT if masked else FLASH


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@DEVICES
@CASES
def test_kernels_are_named_and_compute_the_same(
    module: Attention, shape: tuple[int, ...] | None, on_hopper: bool, dtype: torch.dtype
) -> None:
    program = captured(module, dtype, shape, module.width)
    before = list(program.exported.graph.nodes)
    graph = named(program.exported, on_hopper=on_hopper)
    assert graph is not None
    assert list(program.exported.graph.nodes) == before
    graph.lint()
    assert targets(graph).count(kernel_of(module, shape is not None, on_hopper)) == 2
    assert targets(graph).count(torch.ops.aten.slice_scatter.default) == (0 if shape is None else 1)
    assert all("val" in node.meta for node in graph.nodes if node.op != "output")
    if module.width % ALIGNMENT == 0 and module.own == module.width:
        assert torch.ops.aten.contiguous.default not in targets(graph)
    for batch, tokens in ((1, 2), (4, 13), (8, 64)):
        x = torch.randn(batch, tokens, 6 * module.width, dtype=dtype)
        inputs = [x]
        if shape is not None:
            inputs.append(torch.rand(batch, 1, tokens if shape[2] > 1 else 1, tokens) < 0.7)
        got = Kernels(GraphModule({}, graph)).run(*inputs)[0]
        check(got, module, inputs, on_hopper)


@DEVICES
@pytest.mark.parametrize("shape", [None, (3, 1, 1, 11)], ids=["plain", "keys"])
def test_operands_in_another_layout_are_copied(shape: tuple[int, ...] | None, on_hopper: bool) -> None:
    module = Attention(across=True)
    graph = named(captured(module, torch.bfloat16, shape).exported, on_hopper=on_hopper)
    assert graph is not None
    assert targets(graph).count(torch.ops.aten.contiguous.default) >= 6
    inputs = [torch.randn(4, 13, 96, dtype=torch.bfloat16)]
    if shape is not None:
        inputs.append(torch.rand(4, 1, 1, 13) < 0.7)
    got, eager = Kernels(GraphModule({}, graph)).run(*inputs)[0], module(*inputs)
    fp64 = module(inputs[0].double(), *inputs[1:])
    assert (got - fp64).abs().max() <= 2 * (eager - fp64).abs().max() + torch.finfo(torch.bfloat16).eps


@pytest.mark.diagonal(3)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@DEVICES
@CASES
def test_the_program_is_saved_also_by_a_torch_that_saves_no_uint64(
    module: Attention,
    shape: tuple[int, ...] | None,
    on_hopper: bool,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Flash Attention also returns a dynamic size and, in uint64, its random state, which torch 2.11 does not save."""
    monkeypatch.delitem(serialize._TORCH_TO_SERIALIZE_DTYPE, torch.uint64, raising=False)
    program = captured(module, dtype, shape, module.width).exported
    graph = named(program, on_hopper=on_hopper)
    assert graph is not None
    torch.export.save(with_graph(program, graph), tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").graph
    loaded.eliminate_dead_code()
    assert targets(loaded).count(kernel_of(module, shape is not None, on_hopper)) == 2
    inputs = [torch.randn(4, 13, 6 * module.width, dtype=dtype)]
    if shape is not None:
        inputs.append(torch.rand(4, 1, 13 if shape[2] > 1 else 1, 13) < 0.7)
    got = Kernels(GraphModule({}, loaded)).run(*inputs)[0]
    check(got, module, inputs, on_hopper)


def test_a_package_pads_masks_though_its_example_needs_no_padding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """AOTInductor dropped the slice of a padded mask if both had the same size in the example."""

    def on_cpu(program: Program) -> Program:
        graph = named(program.exported, on_hopper=True)
        assert graph is not None
        assert targets(graph).count(OWN) == 2
        return replace(program, exported=with_graph(program.exported, graph))

    monkeypatch.setattr(unplanned_attention, "without_plans", on_cpu)
    program = captured(Attention(), torch.bfloat16, (3, 1, 24, 24), lengths=Dim("tokens", min=16, max=512))
    torch.export.save(program.exported, tmp_path / "model.pt2")
    done = convert(tmp_path / "model.pt2", target=["aoti"], output=tmp_path / "model.fuseconv")  # compares other sizes
    assert [one.target for one in done.written] == ["aoti"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@DEVICES
@CASES
def test_the_kernels_on_a_gpu(
    module: Attention, shape: tuple[int, ...] | None, on_hopper: bool, dtype: torch.dtype
) -> None:
    graph = named(captured(module, dtype, shape, module.width).exported, on_hopper=on_hopper)
    assert graph is not None
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten._assert_tensor_metadata.default):
        graph.erase_node(node)  # it was captured on the CPU
    run = GraphModule({}, graph)
    for batch, tokens in ((1, 2), (4, 13), (8, 64)):
        x = torch.randn(batch, tokens, 6 * module.width, dtype=dtype, device="cuda")
        inputs = [x]
        if shape is not None:
            seen = torch.rand(batch, 1, tokens if shape[2] > 1 else 1, tokens, device="cuda") < 0.7
            seen[..., 0] = True
            inputs.append(seen)
        (got,) = run(*inputs)
        fp64 = module(x.double(), *inputs[1:])
        eager = module(*inputs)
        assert (got - fp64).abs().max() <= 2 * (eager - fp64).abs().max() + torch.finfo(dtype).eps


@pytest.mark.parametrize(
    ("module", "dtype", "width"),
    [
        (Attention(), torch.float32, 16),
        (Attention(width=264), torch.float16, 264),
    ],
)
def test_other_attention_is_left_to_pytorch(module: nn.Module, dtype: torch.dtype, width: int) -> None:
    assert named(captured(module, dtype, None, width).exported, on_hopper=True) is None


def test_static_sizes_are_left_to_pytorch() -> None:
    program = programs.capture(Attention(), torch.randn(3, 11, 96, dtype=torch.float16), dims=({},))
    assert named(program.exported, on_hopper=True) is None


def heads(x: Tensor, count: int) -> Tensor:
    return x.unflatten(-1, (count, 16)).transpose(1, 2)


class Broadcast(nn.Module):
    """Attention whose operands differ in their batch or their heads, which PyTorch's composite op broadcasts."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.query = nn.Parameter(torch.randn(1, 2, 5, 16, dtype=torch.float16))

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        own, others = heads(x, 2), heads(other, other.shape[-1] // 16)
        if self.what == "query":
            return scaled_dot_product_attention(self.query, own, own)
        if self.what == "mask":
            return scaled_dot_product_attention(self.query, own[:1], own[:1], (own[..., :1, :, 0] > 0).unsqueeze(2))
        if self.what == "values":
            return scaled_dot_product_attention(own, own, others)
        return scaled_dot_product_attention(own, others, others)


@pytest.mark.parametrize(
    ("what", "shape"),
    [
        ("query", (3, 11, 32)),
        ("keys", (1, 11, 32)),
        ("values", (3, 11, 16)),
        ("mask", (1, 1, 16)),
    ],
)
def test_what_broadcasts_is_left_to_pytorch(what: str, shape: tuple[int, ...]) -> None:
    x, other = torch.randn(3, 11, 32, dtype=torch.float16), torch.randn(shape, dtype=torch.float16)
    of_other = {at: dim for at, dim in ((0, BATCH), (1, TOKENS)) if shape[at] > 1}
    program = programs.capture(Broadcast(what), x, other, dims=({0: BATCH, 1: TOKENS}, of_other))
    assert torch.ops.aten.scaled_dot_product_attention.default in targets(program.exported.graph)
    assert named(program.exported, on_hopper=True) is None


@pytest.mark.parametrize(("width", "queries"), [(136, 11), (16, 5)], ids=["wide", "few"])
def test_pytorch_computes_wide_heads_and_few_queries_on_hopper(width: int, queries: int) -> None:
    class Mixing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (one.unflatten(-1, (2, -1)).transpose(1, 2) for one in x.chunk(3, -1))
            return scaled_dot_product_attention(q[:, :, :5] if queries == 5 else q, k, v)

    x = torch.randn(3, 11, 6 * width, dtype=torch.float16)
    tokens = Dim("tokens", min=6, max=64)
    program = programs.capture(Mixing(), x, dims=({0: BATCH, 1: tokens},))
    graph = named(program.exported, on_hopper=True)
    assert graph is not None
    assert targets(graph).count(FLASH) == 1


@DEVICES
def test_a_mask_that_is_written_between_layers_is_prepared_again(on_hopper: bool) -> None:
    class Written(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            y, mask = heads(x, 2), mask.clone()
            first = scaled_dot_product_attention(y, y, y, mask)
            mask.view(-1).fill_(-100.0)  # through a view: the mask stays the same value of the graph
            mask[..., 0].zero_()
            return first + scaled_dot_product_attention(y, y, y, mask)

    x, mask = torch.randn(3, 11, 32, dtype=torch.bfloat16), torch.zeros(3, 1, 11, 11, dtype=torch.bfloat16)
    dims = ({0: BATCH, 1: TOKENS}, {0: BATCH, 2: TOKENS, 3: TOKENS})
    graph = named(programs.capture(Written(), x, mask, dims=dims).exported, on_hopper=on_hopper)
    assert graph is not None
    assert targets(graph).count(torch.ops.aten.slice_scatter.default) == 2
    got, eager = Kernels(GraphModule({}, graph)).run(x, mask)[0], Written()(x, mask)
    fp64 = Written()(x.double(), mask.double())
    assert (got - fp64).abs().max() <= 2 * (eager - fp64).abs().max() + torch.finfo(torch.bfloat16).eps


class Mixed(nn.Module):
    """Two dtypes share a mask."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        half, brain = heads(x, 2), heads(x, 2).to(torch.bfloat16)
        y = scaled_dot_product_attention(brain, brain, brain, mask).to(x.dtype)
        return y + scaled_dot_product_attention(half, half, half, mask)


def test_a_mask_is_prepared_for_each_dtype() -> None:
    mask = torch.ones(3, 1, 1, 11, dtype=torch.bool)
    x = torch.randn(3, 11, 32, dtype=torch.float16)
    dims = ({0: BATCH, 1: TOKENS}, {0: BATCH, 3: TOKENS})
    graph = named(programs.capture(Mixed(), x, mask, dims=dims).exported, on_hopper=False)
    assert graph is not None
    calls = graph.find_nodes(op="call_function", target=EFFICIENT)
    pairs = [[one.meta["val"].dtype for one in (call.args[0], call.args[3])] for call in calls]
    assert pairs == [[torch.bfloat16] * 2, [torch.float16] * 2]

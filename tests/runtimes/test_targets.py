"""The targets compute what the graph computes, at every size, and report what they do not support."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from support import small_bundle
from support.functions import IMAGES, Function, down_and_up, equal, onnx_model, windows
from support.subjects import subject_of
from torch import Tensor
from torch.nn import functional as F

from fuseconv import ops
from fuseconv.capture.capture import capture
from fuseconv.capture.placement import place
from fuseconv.contract.dtypes import SHORT_DTYPES
from fuseconv.contract.inputs import draw
from fuseconv.errors import FileError, RefusedError, UnsupportedError
from fuseconv.program.captured import Program
from fuseconv.targets import TARGETS, Context, script_module, torchscript
from fuseconv.targets.script_source import Script, print_script

X = "x=f32[batch:1..16,seq:3..32,8]"
IMAGE = "x=f32[batch:1..8,4,8,8]"


def attention(m: Function, x: Tensor) -> Tensor:
    batch, seq, _ = x.shape
    heads = x.view(batch, seq, 2, 4).transpose(1, 2)
    causal = torch.arange(seq)[None] <= torch.arange(seq)[:, None]
    mixed = F.scaled_dot_product_attention(heads, heads, heads, attn_mask=causal, scale=0.3)
    return mixed.transpose(1, 2).reshape(batch, seq, 8)


def in_place(m: Function, x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = 1.0
    y[..., 1:3] *= 2
    return y.add_(1).relu_()


def resized(m: Function, x: Tensor) -> tuple[Tensor, ...]:
    size = (9, x.shape[3] + x.shape[0])
    modes = (("nearest", False), ("bilinear", False), ("bilinear", True), ("bicubic", False), ("bicubic", True))
    return tuple(F.interpolate(x, size, mode=mode, antialias=antialias) for mode, antialias in modes)


def by_a_word(m: Function, x: Tensor) -> tuple[Tensor, ...]:
    """The word that is an op's default is not told in the graph."""
    weight = torch.ones(2, x.shape[1], 3, 3)
    return F.conv2d(x, weight, padding="valid"), F.conv2d(x, weight, padding="same"), F.gelu(x)


def without_gradients(m: Function, x: Tensor) -> Tensor:
    with torch.no_grad():
        low, high = m.norm(x).chunk(2, -1)
    return low * high


def value_as_size(m: Function, x: Tensor) -> Tensor:
    """As an archive of a traced model has it."""
    size: Any = torch.scalar_tensor(x.shape[1], dtype=torch.int64).item()
    torch._check(size == x.shape[1])
    return x.mT.reshape(x.shape[0], 8, size) * size


FUNCTIONS: dict[str, tuple[Callable[..., object], tuple[str, ...]]] = {
    "activations": (lambda m, x: (F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.hardtanh(x, -1, 1)), (X,)),
    "arange_dtype": (lambda m, x: torch.arange(0, x.shape[1], 2, dtype=torch.float32) * x.shape[0], (X,)),
    "attention": (attention, (X,)),
    "batch_norm": (lambda m, x: m.batch_norm(x), (IMAGE,)),
    "bool_scalar": (lambda m, x: torch.where(x > 0, x > 1, True), (X,)),
    "bool_full": (lambda m, x: torch.full((x.shape[1], 2), True), (X,)),
    "bool_or": (lambda m, x: (x > 0) | False, (X,)),
    "casts": (lambda m, x: (x.to(torch.float64).float(), x.long().to(x.dtype), x.half() * 2, x.type_as(m.table)), (X,)),
    "cat": (lambda m, x: torch.cat([x, x[:, :1], -x], dim=1), (X,)),
    "chunk": (lambda m, x: x.chunk(2, -1), (X,)),
    "conv": (lambda m, x: m.conv(x), (IMAGE,)),
    "cumulative": (lambda m, x: (x.cumsum(1), x.sort(dim=1, descending=True)[1]), (X,)),
    "dims_of_all_kinds": (lambda m, x: (x.unsqueeze(0).squeeze(0), x.permute(2, 0, 1), x.movedim(0, 1), x.mT), (X,)),
    "dropout": (lambda m, x: F.dropout(x, 0.5, training=False), (X,)),
    "einsum": (lambda m, x: torch.einsum("bsd,btd->bst", x, x), (X,)),
    "embedding": (lambda m, i: m.embedding(i), ("i=i64[batch:1..16,seq:1..32]",)),
    "empty_list": (lambda m, x: x.mean(), (X,)),
    "convolution_by_a_word": (by_a_word, (IMAGE,)),
    "expand": (lambda m, x: x[:, :1].expand(-1, x.shape[1], -1) + x.new_ones(x.shape[0], 1, 1), (X,)),
    "flatten": (lambda m, x: (x.flatten(1), x.flatten(0, 1), x.unflatten(-1, (2, 4))), (X,)),
    "gather": (lambda m, x: (x.gather(1, x.argsort(dim=1)), x.gather(1, x.argmax(1, keepdim=True))), (X,)),
    "index": (lambda m, x: (x[:, [0, 2]], x[torch.arange(x.shape[0]), 0], x[..., torch.tensor([1, 0])]), (X,)),
    "in_place": (in_place, (X,)),
    "infinite": (lambda m, x: x.masked_fill(x > 0, float("-inf")).softmax(-1).nan_to_num(0.0, float("inf")), (X,)),
    "input_as_output": (lambda m, x: (x, x + 1, x), (X,)),
    "interpolate_to_a_size": (resized, (IMAGE,)),
    "interpolate": (lambda m, x: F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False), (IMAGE,)),
    "linear": (lambda m, x: F.linear(x, m.linear.weight) + m.linear(x), (X,)),
    "multiples": (down_and_up, (IMAGES,)),
    "multiples_in_windows": (windows, (IMAGES,)),
    "max_with_indices": (lambda m, x: (*x.max(1), x.max(), torch.maximum(x, -x)), (X,)),
    "named_like_python": (lambda m, x, max, float: x * max + float, (X, "max=f32[batch,seq,8]", "float=f32[8]")),  # noqa: A006
    "no_grad": (without_gradients, (X,)),
    "norms": (lambda m, x: (m.norm(x), F.normalize(x, dim=-1), x.norm(dim=-1), F.rms_norm(x, (8,), eps=1e-6)), (X,)),
    "pad": (lambda m, x: (F.pad(x, (1, 2)), F.pad(x, (0, 0, 1, 1), value=2.5)), (X,)),
    "pool": (lambda m, x: (F.max_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1), F.avg_pool2d(x, 3, 2, 1)), (IMAGE,)),
    "powers": (lambda m, x: (x**2, 2**x, x.abs() ** 0.5, x.rsqrt().nan_to_num(), 1 / (x * x + 1), 1 - x), (X,)),
    "reductions": (lambda m, x: (x.sum((0, 1)), x.var(-1, correction=0), x.any(-1), x.amax((1, 2))), (X,)),
    "repeat": (lambda m, x: (x.repeat(2, 1, 1), x.repeat_interleave(2, dim=1), x.tile(3)), (X,)),
    "roll_and_flip": (lambda m, x: (x.roll(1, 1), x.flip(1)), (X,)),
    "rounding": (lambda m, x: (torch.div(x, 0.3, rounding_mode="floor"), x.round(), x % 2, x // 2), (X,)),
    "scalars_out": (lambda m, x: (m.table[2], torch.tensor(3.5), torch.zeros(())), (X,)),
    "scatter": (lambda m, x: torch.zeros_like(x).scatter(1, x.argsort(dim=1), x), (X,)),
    "slices": (lambda m, x: (x[:, 1:], x[:, :-1], x[..., ::2], x[:, : x.shape[1] - 1], x[None, :, -1]), (X,)),
    "split": (lambda m, x: (*x.split([3, 5], -1), *x.split(4, -1), *x.unbind(-1)[:2]), (X,)),
    "stack": (lambda m, x: torch.stack([x, x * 2], dim=1), (X,)),
    "symbolic_arithmetic": (
        lambda m, x: x / x.shape[1] ** 2 * ((x.shape[0] * 3 - 1) // 2 + x.shape[1] % 2) + x.numel() * x.shape[1] ** 0.5,
        (X,),
    ),
    "symbolic_sizes": (lambda m, x: x.reshape(x.shape[0] * x.shape[1], -1).view(-1, 4) * max(x.shape[0], 2), (X,)),
    "tril": (lambda m, x: torch.tril(torch.ones(x.shape[1], x.shape[1])), (X,)),
    "value_as_size": (value_as_size, (X,)),
    "where": (lambda m, x: torch.where(x > 0, x, -1.0), (X,)),
    "zeros_of_size": (lambda m, x: torch.zeros(x.shape[0], x.shape[1] + 1, dtype=torch.int32), (X,)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torchscript_computes_what_the_graph_computes(name: str, tmp_path: Path) -> None:
    function, inputs = FUNCTIONS[name]
    module = Function(function).eval()
    program = small_bundle.program(module, inputs)
    path = torchscript.write(program, tmp_path, Context(tmp_path))
    loaded = torchscript.load(tmp_path / path, "cpu")
    for seed, size in enumerate(("min", "max", "example")):
        sizes = {dim.name: getattr(dim, size, dim.allowed(5)) for dim in program.contract.dims().values()}
        tensors = draw(program.contract, sizes, seed=seed)
        with torch.no_grad():
            equal(loaded(*(t.clone() for t in tensors)), tuple(module(*(t.clone() for t in tensors))))


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_torchscript_gives_the_same_from_the_second_call_on(device: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Where its fuser would have compiled kernels of its own."""

    class Pointwise(torch.nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return torch.nn.functional.hardswish(x + x), (x + x.mean()).to(torch.bfloat16)

    module, x = Pointwise().eval(), torch.randn(3, 8, device=device).to(dtype)
    program = small_bundle.program(module, (f"x={SHORT_DTYPES[str(dtype)]}[batch:1..8,8]",), device)
    path = torchscript.write(program, tmp_path, Context(tmp_path))
    loaded = torchscript.load(tmp_path / path, device)
    for _ in range(4):
        with torch.no_grad():
            equal(loaded(x), module(x))


@pytest.mark.parametrize("dropout", ["dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"])
def test_torchscript_sees_what_is_written_through_dropout(dropout: str, tmp_path: Path) -> None:
    """In eval mode it returns its input itself, whatever its schema says."""
    drop = getattr(torch.ops.aten, dropout).default

    def function(m: Function, x: Tensor) -> tuple[Tensor, Tensor]:
        h = x * 2
        same = drop(h, 0.5, False)
        same.masked_fill_(x > 0, -2.0)
        return h + 1, h

    program = small_bundle.program(Function(function).eval(), (X,))
    path = torchscript.write(program, tmp_path, Context(tmp_path))
    loaded = torchscript.load(tmp_path / path, "cpu")
    (x,) = program.examples
    with torch.no_grad():
        equal(loaded(x), function(Function(function), x))


def test_torchscript_saves_tied_weights_once(tmp_path: Path) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(500, 64)
            self.head = torch.nn.Linear(64, 500, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, i: Tensor) -> Tensor:
            return self.head(self.embedding(i))

    program = small_bundle.program(Tied(), ("i=i64[n:1..9]",))
    assert len(print_script(program).tensors) == 1
    path = torchscript.write(program, tmp_path, Context(tmp_path))
    assert (tmp_path / path).stat().st_size < 1.2 * 500 * 64 * 4


def test_torchscript_refuses_control_flow_and_names_it() -> None:
    def branch(m: Function, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    program = small_bundle.program(Function(branch), (X,))
    with pytest.raises(UnsupportedError, match="cond") as caught:
        print_script(program)
    assert "node cond" in caught.value.where
    assert "cond" in (TARGETS["torchscript"].unsupported(program) or "")


def test_torchscript_proves_the_overloads_that_the_compiler_chose() -> None:
    source = "def forward(self, x: Tensor):\n    y = torch.ops.aten.add(x, 1.0)\n    return (y, )\n"
    script_module.compile_script(Script(source, {}, {"y": torch.ops.aten.add.Scalar}))
    with pytest.raises(UnsupportedError, match=r"aten.add.Tensor to aten::add.Scalar"):
        script_module.compile_script(Script(source, {}, {"y": torch.ops.aten.add.Tensor}))


def test_onnx_keeps_the_names_of_inputs_outputs_and_dims(bundle: Path) -> None:
    graph = onnx_model(bundle).graph
    sizes = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in graph.input}
    assert sizes == {"x": ["batch", "seq", 8], "skip": ["batch", "seq", 8], "keep": ["batch", "seq"]}
    assert [value.name for value in graph.output] == ["output_0", "output_1", "output_2", "output_3"]


def test_onnx_has_one_node_and_one_function_for_each_way_an_op_is_called(bundle: Path) -> None:
    model = onnx_model(bundle)
    nodes = [node for node in model.graph.node if node.domain == "com.fuseconv"]
    called = [(node.op_type, node.overload) for node in nodes]
    assert sorted(kind for kind, _ in called) == [
        "AddLayerNorm", "AddRelu", "BiasAct", "LayerNormAct", "LinearAct", "LinearAct", "MulAdd",
    ]  # fmt: skip
    assert sorted(called) == sorted((function.name, function.overload) for function in model.functions)
    gelu = next(node for node in nodes if node.op_type == "LinearAct")
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in gelu.attribute}
    assert attributes == {"act": b"gelu", "backend": b"auto", "tf32": 0, "residual_first": 0}
    assert model.opset_import[0].version >= 20 or model.opset_import[1].version >= 20
    assert {opset.domain: opset.version for opset in model.opset_import}["com.fuseconv"] == 1


def test_onnx_makes_one_body_for_calls_of_one_kind(tmp_path: Path) -> None:
    def twice(m: Function, x: Tensor) -> Tensor:
        big = ops.linear_act(x, torch.ones(12, 8), None, None, "relu")
        return ops.linear_act(big, torch.ones(4, 12), None, None, "relu")

    program = small_bundle.program(Function(twice), (X,))
    TARGETS["onnx"].write(program, tmp_path, Context(tmp_path))
    model = onnx_model(tmp_path)
    assert len(model.functions) == 1
    assert sum(node.op_type == "LinearAct" for node in model.graph.node) == 2


def test_onnx_keeps_outputs_apart_from_inputs_with_their_names(tmp_path: Path) -> None:
    class Same(torch.nn.Module):
        def forward(self, sample: Tensor, other: Tensor) -> dict[str, Tensor]:
            return {"sample": sample + 1, "sample_out": sample * other, "third": other - 1}

    made = small_bundle.program(Same(), ("sample=f32[n:1..4,3]", "other=f32[n,3]"))
    program = replace(made, contract=replace(made.contract, outputs=("sample", "sample_out", "third")))
    path = tmp_path / TARGETS["onnx"].write(program, tmp_path, Context(tmp_path))
    graph = onnx.load(path).graph
    assert [value.name for value in graph.input] == ["sample", "other"]
    assert [value.name for value in graph.output] == ["sample_out1", "sample_out", "third"]
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    for result, own in zip(TARGETS["onnx"].load(path, "cpu")(x, y), (x + 1, x * y, y - 1), strict=True):
        torch.testing.assert_close(result, own)


def test_onnx_finds_our_nodes_under_whatever_name(tmp_path: Path) -> None:
    program = small_bundle.program(small_bundle.Block(fused=True))
    for index, node in enumerate(program.exported.graph.find_nodes(op="call_function", target=ops.linear_act.overload)):
        node.name = f"site_{index}"  # as a rewrite names its nodes; the exporter names its copy's anew
    TARGETS["onnx"].write(program, tmp_path, Context(tmp_path))
    assert {node.overload for node in onnx_model(tmp_path).graph.node if node.op_type == "LinearAct"} == {"0", "1"}


class Anchors(torch.nn.Module):
    anchors: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("anchors", torch.arange(8.0))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"scores": x + self.anchors, "anchors": self.anchors}


def test_onnx_has_an_output_that_is_called_what_a_weight_is_called(tmp_path: Path) -> None:
    program = capture(subject_of(Anchors(), X))
    assert program.contract.outputs == ("scores", "anchors")
    path = tmp_path / TARGETS["onnx"].write(program, tmp_path, Context(tmp_path))
    assert [value.name for value in onnx.load(path).graph.output] == ["scores", "anchors"]
    x = torch.randn(3, 5, 8)
    equal(TARGETS["onnx"].load(path, "cpu")(x), tuple(Anchors()(x).values()))


def test_onnx_says_which_kernel_the_runtime_lacks(tmp_path: Path) -> None:
    program = small_bundle.program(Function(lambda m, x: x * 2 + 1), ("x=bf16[batch:1..4,8]",))
    with pytest.raises(UnsupportedError, match=r"ONNX Runtime .* on cpu has no kernel") as caught:
        TARGETS["onnx"].write(program, tmp_path, Context(tmp_path))
    assert caught.value.exit_status == 4


@pytest.mark.gpu
def test_onnx_says_which_kernel_cuda_lacks(tmp_path: Path) -> None:
    """Of bfloat16 it multiplies, and compares nothing."""
    program = small_bundle.program(Function(lambda m, x: x.eq(0)), ("x=bf16[batch:1..4,8]",))
    with pytest.raises(UnsupportedError, match=r"ONNX Runtime .* on cuda has no kernel for Equal in this dtype"):
        TARGETS["onnx"].write(place(program, "cuda"), tmp_path, Context(tmp_path))


def test_onnx_says_which_operator_has_no_form(tmp_path: Path) -> None:
    program = small_bundle.program(Function(lambda m, x: torch.linalg.eigvalsh(x[:, :8, :8])), ("x=f32[b:1..4,8,8]",))
    with pytest.raises(UnsupportedError, match="eig"):
        TARGETS["onnx"].write(program, tmp_path, Context(tmp_path))


@pytest.mark.parametrize("target", ["torchscript", "onnx", "onnx-plugin"])
def test_zeros_of_both_signs_are_refused_where_they_are_one(target: str) -> None:
    program = small_bundle.program(Function(lambda m, x: (x * 0.0, x * -0.0)), (X,))
    assert "argument -0.0 of mul_1" in (TARGETS[target].unsupported(program) or "")
    assert TARGETS[target].unsupported(small_bundle.program(Function(lambda m, x: x * 0.0), (X,))) is None


def test_onnx_has_no_complex_inputs() -> None:
    program = small_bundle.program(Function(lambda m, z: z.abs()), ("z=c64[n:1..9]",))
    assert "complex" in (TARGETS["onnx"].unsupported(program) or "")


def test_onnx_has_no_complex_outputs() -> None:
    program = small_bundle.program(Function(lambda m, x: (x, torch.fft.rfft(x))), (X,))
    for target in ("onnx", "onnx-plugin"):
        assert "output output_1 is complex" in (TARGETS[target].unsupported(program) or "")


@pytest.mark.parametrize(
    ("location", "offset"),
    [
        ("../weights.safetensors", 0),
        ("/etc/passwd", 0),
        ("lib/../../weights.safetensors", 0),
        ("link", 0),
        ("links/plan.json", 0),
        ("none", 0),
        ("weights.safetensors", 1 << 40),
    ],
)
def test_onnx_weights_outside_the_folder_are_refused(location: str, offset: int, bundle_copy: Path) -> None:
    folder = bundle_copy
    (folder / "link").symlink_to(bundle_copy / "plan.json")
    (folder / "links").symlink_to(bundle_copy)
    model = onnx_model(bundle_copy)
    tensor = next(t for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL)
    for item in tensor.external_data:
        item.value = {"location": location, "offset": str(offset)}.get(item.key, item.value)
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(RefusedError, match=tensor.name):
        TARGETS["onnx"].load(folder / "model.onnx", "cpu")


class Puts(torch.nn.Module):
    """Calls index_put, whose translation by the exporter has an empty list."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        row = x[0, 0]
        return torch.ops.aten.index_put.default(row, [torch.tensor([1, 0])], row[2:4], True)


def test_the_exporter_is_quiet(fused: Program, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for program in (fused, small_bundle.program(Puts(), (X,))):
        TARGETS["onnx"].write(program, tmp_path, Context(tmp_path))
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("torch.onnx._internal.exporter._registration").level != logging.ERROR


def test_torchscript_names_weights_of_unnamed_layers(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    path = tmp_path / TARGETS["torchscript"].write(small_bundle.program(module, (X,)), tmp_path, Context(tmp_path))
    x = torch.randn(3, 5, 8)
    torch.testing.assert_close(TARGETS["torchscript"].load(path, "cpu")(x)[0], module(x).detach())


@pytest.mark.parametrize("target", ["export", "torchscript"])
def test_a_saver_that_cannot_write_raises_and_does_not_abort(target: str, fused: Program, tmp_path: Path) -> None:
    (tmp_path / target).mkdir()
    name = {"export": "model.pt2", "torchscript": "model.pt"}[target]
    (tmp_path / target / name).symlink_to("/dev/full")
    with pytest.raises(FileError, match="No space left on device"):
        TARGETS[target].write(fused, tmp_path, Context(tmp_path))

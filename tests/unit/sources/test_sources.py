"""Every format of model is read, detected by content."""

import io
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support import saved_models
from support.saved_models import (
    FORMS,
    SAVERS,
    TRUST,
    Convolution,
    Perceptron,
    Saved,
    Tied,
    edit_zip,
    made,
    options_for,
    run,
)
from torch import Tensor

from fuseconv.capture.capture import capture
from fuseconv.contract.dims import Dim
from fuseconv.contract.input_text import parse_inputs
from fuseconv.errors import (
    FuseconvError,
    RefusedError,
    UnsupportedError,
    UpstreamError,
    UsageError,
)
from fuseconv.sources import Options, Subject, read, sniff

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning"),  # torch warns of its own use
]


@pytest.mark.parametrize("form", SAVERS)
@pytest.mark.parametrize("model_class", [Perceptron, Convolution, Tied])
def test_reads_every_form(saved: Saved, model_class: type[torch.nn.Module], form: str) -> None:
    subject = read(saved[model_class, form], options=options_for(model_class, form))
    assert subject.source == FORMS.get(form, "state-dict")
    assert len(subject.sha256) == 64
    assert not any(part.training for part in subject.module.modules())
    assert not any(parameter.requires_grad for parameter in subject.module.parameters())
    with torch.no_grad():
        torch.testing.assert_close(run(subject)[0], made(model_class)(*subject.examples), rtol=0, atol=0)


@pytest.mark.parametrize("form", SAVERS)
def test_sniffs_content_and_not_the_name(saved: Saved, tmp_path: Path, form: str) -> None:
    for name in ("model.safetensors", "model.pt2", "model", "model.onnx"):
        path = shutil.copy(saved[Perceptron, form], tmp_path / name)
        assert sniff(Path(path)) == FORMS.get(form, "state-dict")


@pytest.mark.parametrize("form", [form for form in SAVERS if form != "pt2"])
def test_code_needs_trust(saved: Saved, form: str) -> None:
    options = options_for(Perceptron, form, trust=frozenset())
    (flag,) = TRUST[FORMS.get(form, "state-dict")]
    with pytest.raises(RefusedError, match=f"--trust {flag}") as caught:
        read(saved[Perceptron, form], options=options)
    assert caught.value.exit_status == 3


def test_archive_contract_comes_from_the_archive(saved: Saved) -> None:
    subject = read(saved[Convolution, "pt2"])
    (spec,) = subject.contract.inputs
    assert spec.name == "image"
    assert spec.shape == (Dim("dim0", 1, 64), 3, Dim("dim1", 4, 32), Dim("dim2", 4, 32))
    assert subject.contract.bind(subject.examples, {})


def test_input_overrides_the_archive(saved: Saved) -> None:
    subject = read(saved[Perceptron, "pt2"], options=Options(inputs=parse_inputs(["rows=f32[n:2..8,4]"])))
    assert [str(spec) for spec in subject.contract.inputs] == ["rows=f32[n:2..8,4]"]
    assert run(subject)[0].shape == (3, 2)


def test_inputs_from_a_file(saved: Saved, tmp_path: Path) -> None:
    x = torch.randn(6, 4)
    torch.save({"x": x}, tmp_path / "inputs.pt")
    options = options_for(Perceptron, "state dict", inputs=(), inputs_file=tmp_path / "inputs.pt")
    subject = read(saved[Perceptron, "state dict"], options=options)
    assert [str(spec) for spec in subject.contract.inputs] == ["x=f32[6,4]"]
    assert torch.equal(subject.examples[0], x)
    options = options_for(Perceptron, "state dict", inputs_file=tmp_path / "inputs.pt")
    assert torch.equal(read(saved[Perceptron, "state dict"], options=options).examples[0], x)


@pytest.mark.parametrize("form", ["pt2", "traced", "pickle", "state dict"])
@pytest.mark.parametrize(("short", "dtype"), [("f64", torch.float64), ("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_dtype_converts_module_and_contract(saved: Saved, form: str, short: str, dtype: torch.dtype) -> None:
    subject = read(saved[Convolution, form], options=options_for(Convolution, form, dtype=short))
    assert [spec.dtype for spec in subject.contract.inputs] == [short]
    assert subject.examples[0].dtype == dtype
    assert run(subject)[0].dtype == dtype


def test_dtype_converts_the_regions_of_an_archive(tmp_path: Path) -> None:
    """As the rotary positions of transformers, with autocast off."""

    class Rotary(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", enabled=False):
                angle = x.to(torch.float32).cos().to(x.dtype)
            return angle * x

    torch.export.save(torch.export.export(Rotary(), (torch.ones(3, 4),)), tmp_path / "a.pt2")
    program = capture(read(tmp_path / "a.pt2", options=Options(dtype="bf16")))
    (found,) = program.exported.module()(x := torch.randn(3, 4, dtype=torch.bfloat16))
    torch.testing.assert_close(found, x.cos() * x)


def test_integers_keep_their_dtype(saved: Saved) -> None:
    subject = read(saved[Tied, "pickle"], options=options_for(Tied, "pickle", dtype="bf16"))
    assert [spec.dtype for spec in subject.contract.inputs] == ["i64"]


def test_input_ranges(saved: Saved) -> None:
    options = options_for(Tied, "pickle", input_ranges={"ids": (7, 7)})
    assert read(saved[Tied, "pickle"], options=options).examples[0].unique().tolist() == [7]


def test_training_mode_is_left_with_a_note(tmp_path: Path, logged: io.StringIO) -> None:
    torch.save(made(Convolution).train(), tmp_path / "model.pt")
    subject = read(tmp_path / "model.pt", options=options_for(Convolution, "pickle"))
    assert "training mode" in logged.getvalue()
    torch.testing.assert_close(run(subject)[0], made(Convolution)(*subject.examples))


def test_a_checkpoint_with_other_objects_is_a_pickle(tmp_path: Path) -> None:
    torch.save({"model": made(Perceptron).state_dict(), "path": Path("x")}, tmp_path / "model.pt")
    options = options_for(Perceptron, "state dict")
    with pytest.raises(RefusedError, match="pathlib"):
        read(tmp_path / "model.pt", options=options)
    subject = read(
        tmp_path / "model.pt", options=options_for(Perceptron, "state dict", trust=frozenset({"pickle", "code"}))
    )
    torch.testing.assert_close(run(subject)[0], made(Perceptron)(*subject.examples))


def test_a_checkpoint_that_contains_the_module(tmp_path: Path) -> None:
    module = made(Perceptron)
    options = options_for(Perceptron, "pickle")
    torch.save({"model": module, "epoch": 3}, tmp_path / "model.pt")
    subject = read(tmp_path / "model.pt", options=options)
    torch.testing.assert_close(run(subject)[0], module(*subject.examples))
    torch.save({"model": torch.nn.DataParallel(module), "raw": module}, tmp_path / "model.pt")
    assert type(read(tmp_path / "model.pt", options=options).module) is Perceptron
    torch.save({0: module, "ema": made(Perceptron)}, tmp_path / "model.pt")
    with pytest.raises(RefusedError, match="the modules 0, ema") as caught:
        read(tmp_path / "model.pt", options=options)
    assert "[0]" in caught.value.fix


def test_an_archive_that_keeps_containers(tmp_path: Path) -> None:
    """Keyword arguments, a tuple, a dict and None in the caller's signature; flat for fuseconv."""

    class Contained(torch.nn.Module):
        def forward(self, pair: tuple[Tensor, Tensor], *, scale: Tensor, bias: Tensor | None = None) -> dict[str, Any]:
            return {"sum": pair[0] + pair[1] * scale, "none": bias, "rest": [pair[0]]}

    tensors = (torch.randn(3, 2), torch.randn(3, 2))
    exported = torch.export.export(Contained(), (tensors,), {"scale": torch.randn(2), "bias": None})
    torch.export.save(exported, tmp_path / "a.pt2")
    subject = read(tmp_path / "a.pt2")
    assert [spec.name for spec in subject.contract.inputs] == ["pair_0", "pair_1", "scale"]
    total, first = run(subject)
    torch.testing.assert_close(total, subject.examples[0] + subject.examples[1] * subject.examples[2])
    torch.testing.assert_close(first, subject.examples[0])


def test_what_an_archive_asks_of_the_sizes_in_its_containers(tmp_path: Path) -> None:
    """A guard on `pair[0]` and a keyword holds of the tensors that these become."""

    class Cut(torch.nn.Module):
        def forward(self, pair: tuple[Tensor, Tensor], *, table: Tensor) -> Tensor:
            return pair[0] + pair[1] + table[: pair[0].shape[0]]

    free, batch = torch.export.Dim.DYNAMIC, torch.export.Dim("batch", min=1, max=9)
    tensors = ((torch.randn(3, 2), torch.randn(3, 2)), {"table": torch.randn(8, 2)})
    shapes = {"pair": ({0: batch}, {0: batch}), "table": {0: free}}
    exported = torch.export.export(Cut(), (tensors[0],), tensors[1], dynamic_shapes=shapes)
    assert any("L['pair'][0]" in guard for guard in exported._guards_code)
    torch.export.save(exported, tmp_path / "a.pt2")
    module = read(tmp_path / "a.pt2").module
    pair = (torch.randn(4, 2), torch.randn(4, 2))
    torch.testing.assert_close(module(*pair, torch.ones(4, 2))["output_0"], pair[0] + pair[1] + 1)
    with pytest.raises(AssertionError, match=r"Guard failed: pair_\d.size\(\)\[0\] <= table.size\(\)\[0\]"):
        module(*pair, torch.ones(3, 2))


class Shapes(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(4.0)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(0) * self.table + torch.tensor([1.0, 2.0, 3.0, 4.0]), y * 2


Free = torch.export.Dim.DYNAMIC
ARCHIVED_DIMS = {
    "static": ([(3, 4), (2,)], ({}, {}), "x=f32[3,4]", "y=f32[2]"),
    "without bounds": ([(3, 4), (2,)], ({0: Free}, {}), "x=f32[dim0:2..2147483647,4]", "y=f32[2]"),
    "two dims": ([(3, 4), (2,)], ({0: Free}, {0: Free}), "x=f32[dim0:2..2147483647,4]", "y=f32[dim1:2..2147483647]"),
    "one dim twice": (
        [(3, 4), (3,)],
        ({0: torch.export.Dim("n", min=1, max=9)}, {0: torch.export.Dim("n", min=1, max=9)}),
        "x=f32[dim0:1..9,4]",
        "y=f32[dim0:1..9]",
    ),
    "none": ([(3, 4), (2,)], ({0: torch.export.Dim("n", min=0, max=9)}, {}), "x=f32[dim0:1..9,4]", "y=f32[2]"),
}


@pytest.mark.parametrize("name", ARCHIVED_DIMS)
def test_dims_of_an_archive(tmp_path: Path, name: str) -> None:
    shapes, dims, *expected = ARCHIVED_DIMS[name]
    exported = torch.export.export(Shapes(), tuple(torch.ones(shape) for shape in shapes), dynamic_shapes=dims)
    torch.export.save(exported, tmp_path / "a.pt2")
    subject = read(tmp_path / "a.pt2")
    assert [str(spec) for spec in subject.contract.inputs] == expected
    program = capture(subject)
    torch.testing.assert_close(list(program.exported.module()(*subject.examples)), run(subject), rtol=0, atol=0)


def test_derived_dims_of_an_archive_are_refused(tmp_path: Path) -> None:
    n = torch.export.Dim("n", min=2, max=9)
    exported = torch.export.export(Shapes(), (torch.ones(3, 4), torch.ones(6)), dynamic_shapes=({0: n}, {0: 2 * n}))
    torch.export.save(exported, tmp_path / "a.pt2")
    with pytest.raises(UnsupportedError, match="computed from other dims"):
        read(tmp_path / "a.pt2")


FACTORIES = [
    ("saved_models.py:Perceptron", None, ""),
    ("saved_models:Perceptron", None, ""),
    ("Perceptron", UsageError, "cannot be parsed"),
    ("saved_models.py:", UsageError, "cannot be parsed"),
    ("saved_models.py:not-a-name", UsageError, "cannot be parsed"),
    ("nothing.py:Perceptron", UsageError, "no Python file nothing.py"),
    ("nothing_at_all:Perceptron", UsageError, "ModuleNotFoundError"),
    ("saved_models.py:Nothing", UsageError, "AttributeError"),
    ("saved_models.py:broken", UsageError, "no weights here"),
    ("saved_models.py:not_a_module", UsageError, "returned an object of type int"),
    (None, UsageError, "--model"),
    ("saved_models.py:Convolution", RefusedError, "missing: stem.weight"),
    ("saved_models.py:Tied", RefusedError, "not in the model: first.weight"),
]


@pytest.mark.parametrize(("model", "error", "said"), FACTORIES)
def test_model_factories(
    saved: Saved,
    monkeypatch: pytest.MonkeyPatch,
    model: str | None,
    error: type[FuseconvError] | None,
    said: str,
) -> None:
    monkeypatch.chdir(Path(saved_models.__file__).parent)

    def opened() -> Subject:
        return read(saved[Perceptron, "state dict"], options=options_for(Perceptron, "state dict", model=model))

    if error is None:
        assert run(opened())[0].shape == (3, 2)
        return
    with pytest.raises(error) as caught:
        opened()
    assert said in str(caught.value)


def test_shapes_must_agree(tmp_path: Path) -> None:
    state = made(Perceptron).state_dict()
    state["first.weight"] = torch.zeros(8, 5)
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(RefusedError, match=r"first.weight has the shape \[8, 5\], but the model has \[8, 4\]"):
        read(tmp_path / "model.pt", options=options_for(Perceptron, "state dict"))


def test_parameters_that_share_memory_are_filled(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(3, 2)\n"
        "        self.weight = torch.nn.Parameter(torch.ones(2, 1).expand(2, 3))\n"
    )
    weights = {"weight": torch.randn(2, 3), "bias": torch.randn(2)}
    torch.save(weights, tmp_path / "model.pt")
    options = Options(
        model=f"{tmp_path}/net.py:Net", inputs=parse_inputs(["x=f32[n:1..4,3]"]), trust=frozenset({"code"})
    )
    module = read(tmp_path / "model.pt", options=options).module
    assert all(torch.equal(module.get_parameter(name), weights[name]) for name in weights)


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_a_module_without_parameters_has_an_empty_state_dict(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"model.{suffix}"
    if suffix == "pt":
        torch.save(torch.nn.Softmax(-1).state_dict(), path)
    else:
        save_file({}, path)
    options = Options(
        model="torch.nn:Softmax2d", inputs=parse_inputs(["input=f32[2,3,4,4]"]), trust=frozenset({"code"})
    )
    assert isinstance(read(path, options=options).module, torch.nn.Softmax2d)


def test_two_state_dicts_are_ambiguous(tmp_path: Path) -> None:
    torch.save({"model": made(Perceptron).state_dict(), "ema": made(Perceptron).state_dict()}, tmp_path / "model.pt")
    with pytest.raises(RefusedError, match="model, ema"):
        read(tmp_path / "model.pt", options=options_for(Perceptron, "state dict"))


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ((), "the model's inputs are not specified"),
        (("x=f32[2,4]", "y=f32[2,4]"), "forward takes (x)"),
    ],
)
def test_inputs_must_fit_forward(saved: Saved, inputs: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(saved[Perceptron, "pickle"], options=options_for(Perceptron, "pickle", inputs=parse_inputs(inputs)))
    assert said in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_cuda_device(saved: Saved) -> None:
    with pytest.raises(UpstreamError, match="no CUDA device") as caught:
        read(saved[Perceptron, "pt2"], options=Options(device="cuda"))
    assert caught.value.exit_status == 5


@pytest.mark.gpu
@pytest.mark.parametrize("form", SAVERS)
def test_cuda(saved: Saved, form: str) -> None:
    subject = read(saved[Convolution, form], options=options_for(Convolution, form, device="cuda"))
    assert subject.contract.device == "cuda"
    assert {tensor.device.type for tensor in (*subject.examples, *subject.module.parameters(), *run(subject))} == {
        "cuda"
    }


def test_unknown_trust_dtype_and_device() -> None:
    with pytest.raises(UsageError, match="--trust"):
        Options(trust=frozenset({"everything"}))
    with pytest.raises(UsageError, match="--dtype"):
        Options(dtype="f8")
    with pytest.raises(UsageError, match="--device"):
        Options(device="tpu")


def test_torchscript_whose_source_is_no_text_is_an_error_in_words(saved: Saved, tmp_path: Path) -> None:
    """torch quotes the bytes in its own message, which Python then cannot decode."""

    def edit(members: dict[str, bytes]) -> None:
        for name, data in members.items():
            if name.endswith(".py"):
                members[name] = data.replace(b"def forward", b"def \x80\xff")

    path = tmp_path / "model.pt"
    shutil.copy(saved[Perceptron, "scripted"], path)
    edit_zip(path, edit)
    with pytest.raises(UpstreamError, match="cannot read the archive"):
        read(path, options=options_for(Perceptron, "scripted"))


def test_torchscript_that_crashes_torch_is_an_error_in_words(saved: Saved, tmp_path: Path) -> None:
    """A tuple in a tuple, a million deep: torch frees it by as many calls in each other."""

    def edit(members: dict[str, bytes]) -> None:
        members["data.pkl"] = b"\x80\x02)" + b"\x85" * 1_000_000 + b"."

    path = tmp_path / "model.pt"
    shutil.copy(saved[Perceptron, "scripted"], path)
    edit_zip(path, edit)
    with pytest.raises(UpstreamError, match=r"torch crashes \(SIGSEGV\) when it reads the archive"):
        read(path, options=options_for(Perceptron, "scripted"))

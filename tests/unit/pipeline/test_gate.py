"""The gate of a conversion: the faulty step or target is left out and named; the rest is kept."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fuseconv import cli
from fuseconv.bundle import files as bundle_files
from fuseconv.bundle.files import File
from fuseconv.bundle.manifest import open_bundle, read_manifest, seal
from fuseconv.errors import ParityError, RefusedError, UnsupportedError, UpstreamError
from fuseconv.parity import process
from fuseconv.parity.cases import Case, cases
from fuseconv.parity.process import Verified
from fuseconv.pipeline.convert import convert
from fuseconv.pipeline.verify import verify
from fuseconv.processes.forked import SERVER
from fuseconv.program.captured import Program
from fuseconv.proof import checked
from fuseconv.runtime.model import load
from fuseconv.sources import Options
from fuseconv.targets import onnx_export
from fuseconv.weights.store import Store

TORCH = ("export", "torchscript")


def saved(module: nn.Module, path: Path, *inputs: torch.Tensor) -> Path:
    dims = tuple({0: torch.export.Dim("batch", min=1, max=16)} for _ in inputs)
    torch.export.save(torch.export.export(module.eval(), inputs, dynamic_shapes=(dims,)), path)
    return path


class Function(nn.Module):
    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> object:
        return self.function(self, *inputs)


def rule_file(path: Path, *rules: Mapping[str, object], ops: tuple[str, ...] = ()) -> Path:
    made = [{"stage": "fuse", "doc": "For tests.", **rule} for rule in rules]
    path.write_text(json.dumps({"ops": list(ops), "rules": made}))
    return path


RIGHT = {
    "name": "right",
    "match": ["e = aten.exp.default(x)", "y = aten.log1p.default(e)"],
    "replace": ["y = aten.softplus.default(x)"],
}

WRONG = {
    "name": "wrong",
    "match": ["y = aten.sigmoid.default(x)"],
    "replace": ["y = aten.tanh.default(x)"],
}


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets wrong steps pass the trial of every match, as a fault of the trial would."""
    monkeypatch.setattr(checked._Trial, "wrong", lambda *_: {})


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize("matches", [1, 4])
def test_a_wrong_step_is_found_left_out_and_named(matches: int, tmp_path: Path) -> None:
    def function(module: Function, x: torch.Tensor) -> torch.Tensor:
        x = torch.exp(module.first(x)).log1p()
        for _ in range(matches):
            x = module.second(torch.sigmoid(x))
        return torch.exp(x).log1p()

    model = saved(Function(function), tmp_path / "model.pt2", torch.randn(3, 8))
    rules = rule_file(tmp_path / "rules.json", RIGHT, WRONG)
    done = convert(model, rules=rules, target=TORCH)
    assert done.plan.counts() == {"right": 2}
    assert len(done.plan.rejected) == matches
    assert {miss.rule for miss in done.plan.rejected} == {"wrong"}
    assert "rmse against float64" in done.plan.rejected[0].reason
    assert "model.pt2" not in done.plan.rejected[0].where
    assert done.report.ok
    assert {one.target for one in done.written} == set(TORCH)
    assert done.error() is None
    manifest = open_bundle(done.bundle)
    assert (manifest.mismatch, manifest.source.original) == (False, "archive")


@pytest.mark.usefixtures("untried")
def test_strict_makes_an_error_of_what_is_left_out_and_writes_nothing(tmp_path: Path) -> None:
    model = saved(Function(lambda m, x: torch.sigmoid(m.first(x))), tmp_path / "model.pt2", torch.randn(3, 8))
    rules = rule_file(tmp_path / "rules.json", WRONG)
    with pytest.raises(ParityError, match=r"matches rejected and left unfused: 1, of wrong"):
        convert(model, rules=rules, target=TORCH, strict=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pt2", "rules.json"]


@pytest.mark.usefixtures("untried")
def test_a_mismatch_that_is_allowed_keeps_the_step(tmp_path: Path) -> None:
    model = saved(Function(lambda m, x: torch.sigmoid(m.first(x))), tmp_path / "model.pt2", torch.randn(3, 8))
    done = convert(model, rules=rule_file(tmp_path / "r.json", WRONG), target=["export"], allow_mismatch=True)
    assert done.plan.counts() == {"wrong": 1}
    assert open_bundle(done.bundle).mismatch


OVERFLOWS = {
    "name": "overflows",
    "match": ["y = aten.abs.default(x)"],
    "replace": ["s = aten.mul.Tensor(x, x)", "y = aten.sqrt.default(s)"],
}


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize(
    ("rules", "counts", "rejected"),
    [
        ([{**OVERFLOWS, "largest": 1e15}], {"overflows": 1}, {}),
        ([OVERFLOWS], {}, {"overflows": 1}),
        ([{**RIGHT, "largest": 32}, OVERFLOWS], {"right": 1}, {"overflows": 1}),
        ([RIGHT, {**OVERFLOWS, "largest": 1e15}], {"overflows": 1}, {"right": 1}),
    ],
    ids=["declared", "not declared", "one of two is declared", "the other is declared"],
)
def test_a_difference_beyond_the_values_of_a_rule_is_a_limit(
    rules: list[dict[str, object]], counts: dict[str, int], rejected: dict[str, int], tmp_path: Path
) -> None:
    def function(module: Function, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.exp(module.first(x)).log1p(), module.second(x).abs()])

    model = saved(Function(function), tmp_path / "model.pt2", torch.randn(3, 8))
    done = convert(model, rules=rule_file(tmp_path / "rules.json", *rules), target=TORCH)
    assert done.plan.counts() == counts
    assert Counter(miss.rule for miss in done.plan.rejected) == rejected
    assert {(one.target, one.case) for one in done.limits} == {(target, "extremes") for target in TORCH if counts}
    assert all("holds for values up to" in one.reason for one in done.limits)
    assert verify(done.bundle).ok


def test_a_rule_that_the_user_consented_to_is_not_left_out_in_silence(tmp_path: Path) -> None:
    model = saved(Function(lambda m, x: torch.sigmoid(m.first(x))), tmp_path / "model.pt2", torch.randn(3, 8))
    rules = rule_file(tmp_path / "r.json", {**WRONG, "allow": "tanh"})
    with pytest.raises(ParityError, match=r"\(rule wrong at sigmoid\)") as caught:
        convert(model, rules=rules, allow=["tanh"], target=["export"])
    assert "--allow-mismatch" in caught.value.fix


def test_a_step_that_one_exporter_gets_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two fused ops one has a wrong function body in ONNX; in torch, and unfused, all is right."""
    from fuseconv.targets import onnx_functions

    bodies = onnx_functions.bodies

    def with_a_fault(calls: Sequence[onnx_functions.Call], export: Callable[..., Any]) -> list[Any]:
        made = bodies(calls, export)
        for function in made:
            if function.name == "MulAdd":
                for node in function:
                    node.op_type = {"Add": "Sub"}.get(node.op_type, node.op_type)
        return made

    monkeypatch.setattr(onnx_functions, "bodies", with_a_fault)

    def function(module: Function, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(module.first(x)) * a + b

    model = saved(Function(function), tmp_path / "model.pt2", *(torch.randn(3, 8) for _ in range(3)))
    done = convert(model, target=["export", "onnx"])
    assert {one.target for one in done.written} == {"export", "onnx"}
    assert done.plan.counts() == {"linear-act": 1}
    (miss,) = done.plan.rejected
    assert miss.rule == "mul-add"
    assert "the target onnx gives a different result with this step: case given" in miss.reason
    assert done.error() is None


def no_onnx(module: Function, x: torch.Tensor) -> torch.Tensor:
    return torch.special.bessel_j0(module.first(x))


def test_a_target_that_cannot_express_the_model_is_left_out_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = saved(Function(no_onnx), tmp_path / "model.pt2", torch.randn(3, 8))
    done = convert(model, target=["export", "onnx"])
    assert [one.target for one in done.written] == ["export"]
    (left,) = done.left_out
    assert (left.target, left.cause) == ("onnx", "unsupported")
    assert "bessel_j0" in left.reason
    assert open_bundle(done.bundle).left_out == [left]
    assert not (done.bundle / "model.onnx").exists()
    assert cli.main(["inspect", str(done.bundle)]) == 0
    assert "left out: onnx" in capsys.readouterr().out
    assert isinstance(done.error(), UnsupportedError)
    assert load(done.bundle)(torch.ones(2, 8)).shape == (2, 8)
    value = done.to_json()["targets"]["onnx"]
    assert value == {"path": None, "cause": "unsupported", "reason": left.reason}
    with pytest.raises(UnsupportedError, match="bessel_j0"):
        convert(model, target=["onnx"], output=tmp_path / "none.fuseconv")
    with pytest.raises(UnsupportedError, match="targets were left out: onnx"):
        convert(model, target=["export", "onnx"], strict=True, output=tmp_path / "none.fuseconv")
    assert not (tmp_path / "none.fuseconv").exists()


@pytest.mark.usefixtures("own_server")
def test_what_was_asked_for_by_default_and_is_not_here_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    model = saved(Function(no_onnx), tmp_path / "model.pt2", torch.randn(3, 8))
    done = convert(model)
    assert {one.target for one in done.written} == set(TORCH)
    assert {left.target for left in done.left_out} >= {"aoti", "onnx"}
    assert done.error() is None
    assert isinstance(done.error(strict=True), UnsupportedError)


def test_a_target_whose_exporter_is_wrong_is_left_out_with_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = onnx_export.save

    def wrong(program: Program, path: Path, store: Store | None = None) -> None:
        import onnx as protobuf

        save(program, path, store)
        model = protobuf.load(path, load_external_data=False)
        for node in model.graph.node:
            node.op_type = {"Tanh": "Sigmoid"}.get(node.op_type, node.op_type)
        path.write_bytes(model.SerializeToString())

    monkeypatch.setattr(onnx_export, "save", wrong)
    model = saved(Function(lambda m, x: torch.tanh(x + 1)), tmp_path / "model.pt2", torch.randn(3, 8))
    done = convert(model, target=["export", "onnx"])
    (left,) = done.left_out
    assert (left.target, left.cause) == ("onnx", "parity")
    assert "case given" in left.reason
    assert "rmse against float64" in left.reason
    assert not (done.bundle / "model.onnx").exists()
    assert isinstance(done.error(strict=True), ParityError)
    with pytest.raises(ParityError, match="outputs differ"):
        convert(model, target=["onnx"], output=tmp_path / "none.fuseconv")
    kept = convert(model, target=["onnx"], output=tmp_path / "kept.fuseconv", allow_mismatch=True)
    assert open_bundle(kept.bundle).mismatch


@pytest.fixture
def with_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds a special case: the given inputs with a NaN."""

    def with_it(program: Program, **more: Any) -> list[Case]:
        given = cases(program, **more)
        hard = [tensor.clone() for tensor in given[0].inputs]
        hard[0].view(-1)[3] = float("nan")
        return [*(case for case in given if case.kind == "ordinary"), Case("NaN", tuple(hard), kind="special")]

    monkeypatch.setattr("fuseconv.pipeline.convert.cases", with_it)


@pytest.mark.usefixtures("with_nan")
def test_what_a_runtime_does_with_nan_is_a_limit_with_a_name(tmp_path: Path) -> None:
    model = saved(Function(lambda m, x: (m.first(x), torch.sign(x))), tmp_path / "model.pt2", torch.randn(3, 8))
    done = convert(model, target=["export", "onnx"])
    assert {one.target for one in done.written} == {"export", "onnx"}
    (limit,) = done.limits
    assert (limit.target, limit.case, limit.output) == ("onnx", "NaN", "output_1")
    assert "NaN" in limit.reason
    assert done.error(strict=True) is None
    assert open_bundle(done.bundle).limits == [limit]
    again = verify(done.bundle)
    assert again.ok
    assert [row.output for row in again.rows if row.limit] == ["output_1"]
    against = verify(done.bundle, against=model)
    assert against.ok


@pytest.mark.usefixtures("with_nan", "untried")
def test_what_a_fusion_does_with_nan_is_the_fusions_fault(tmp_path: Path) -> None:
    swallows = {"name": "swallows", "match": ["y = aten.relu.default(x)"], "replace": []}
    swallows["replace"] = ["r = aten.clamp_min.default(x, 0)", "y = aten.nan_to_num.default(r, 0.0, inf, -inf)"]
    model = saved(Function(lambda m, x: torch.relu(x)), tmp_path / "model.pt2", torch.randn(3, 8))
    done = convert(model, rules=rule_file(tmp_path / "r.json", swallows), target=["export", "onnx"])
    assert done.plan.counts() == {}
    assert "case NaN" in done.plan.rejected[0].reason


PYTHON_ONLY = """
import torch

@torch.library.custom_op("gate_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@twice.register_fake
def _(x):
    return torch.empty_like(x)
"""


def test_an_op_that_lives_in_this_process_alone_is_left_out(tmp_path: Path) -> None:
    """The artifacts are run where there is the bundle and nothing else: no other process has the op."""
    (tmp_path / "ops.py").write_text(PYTHON_ONLY)
    twice = {"name": "twice", "match": ["y = aten.mul.Tensor(x, 2.0)"], "replace": ["y = gate_test.twice.default(x)"]}
    rules = rule_file(tmp_path / "rules.json", twice, ops=("ops.py",))
    model = saved(Function(lambda m, x: m.first(x) * 2.0), tmp_path / "model.pt2", torch.randn(3, 8))
    options = Options(trust=frozenset({"code"}))
    done = convert(model, rules=rules, target=TORCH, options=options)
    (miss,) = done.plan.rejected
    assert miss.rule == "twice"
    assert "gate_test" in miss.reason
    assert {one.target for one in done.written} == set(TORCH)
    torch.testing.assert_close(load(done.bundle, "torchscript")(torch.ones(2, 8)).shape, torch.Size([2, 8]))
    with pytest.raises(ParityError, match="twice"):
        convert(model, rules=rules, target=TORCH, options=options, strict=True, output=tmp_path / "none")


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A bundle without aoti, which takes long to compile."""
    model = saved(Function(lambda m, x: torch.relu(m.first(x))), tmp_path / "plain.pt2", torch.randn(3, 8))
    return convert(model, target=[*TORCH, "onnx"]).bundle


def test_a_target_that_crashes_is_an_error_of_its_own(plain: Path) -> None:
    """The op library of the torch targets crashes as it is loaded; the process that verifies lives on."""
    code = "__attribute__((constructor)) static void f(void) { *(volatile int *)0 = 1; }\n"
    manifest = open_bundle(plain)
    library = plain / "lib" / "libfuseconv_cpu.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=code, text=True, check=True)
    seal(plain, manifest)
    found = process.verify(plain, ["export", "onnx", "torchscript"])
    for target in TORCH:
        error = found[target].error
        assert isinstance(error, UpstreamError)
        assert f"the target {target} was killed by SIGSEGV" in error.what
    assert found["onnx"].error is None
    assert found["onnx"].rows
    with pytest.raises(UpstreamError, match="SIGSEGV"):
        verify(plain)


def test_the_server_is_started_again_where_it_ended(plain: Path) -> None:
    process.prepare()
    assert SERVER._process is not None
    os.kill(SERVER._process.pid, 9)
    assert process.verify(plain, ["torchscript"])["torchscript"].rows


def test_every_byte_of_a_bundle_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    asked: list[bool] = []
    measure, ask = bundle_files.measure_file, process._ask

    def measured(path: Path) -> File:
        hashed.append(path.name)
        return measure(path)

    def listened(request: dict[str, Any], log: Path) -> dict[str, Verified]:
        asked.append(request["hashed"])
        return ask(request, log)

    monkeypatch.setattr(bundle_files, "measure_file", measured)
    monkeypatch.setattr(process, "_ask", listened)
    model = saved(Function(lambda m, x: torch.tanh(x + 1)), tmp_path / "model.pt2", torch.randn(3, 8))
    done = convert(model, target=["export", "torchscript"])
    assert asked == [True]
    assert sorted(hashed) == sorted(Path(name).name for name in read_manifest(done.bundle).files)


def test_a_process_that_is_not_told_that_a_bundle_was_opened_hashes_it(tmp_path: Path) -> None:
    model = saved(Function(lambda m, x: torch.tanh(x + 1)), tmp_path / "model.pt2", torch.randn(3, 8))
    bundle = convert(model, target=["export"]).bundle
    with (bundle / "plan.json").open("a") as plan:
        plan.write(" ")
    assert process.verify(bundle, ["export"], hashed=True)["export"].error is None
    with pytest.raises(RefusedError, match=r"plan\.json has"):
        process.verify(bundle, ["export"])

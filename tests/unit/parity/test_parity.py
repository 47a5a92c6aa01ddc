"""Verification: right bundles pass, wrong ones fail and the output is named, with and without the original."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from support import small_bundle
from support.others import Other
from support.small_bundle import Block
from torch import Tensor

from fuseconv.bundle.manifest import open_bundle, seal
from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.spec import Contract
from fuseconv.contract.values import SPECIAL
from fuseconv.errors import RefusedError, UsageError
from fuseconv.parity import verification
from fuseconv.parity.cases import Case, cases
from fuseconv.parity.reference import (
    REFERENCE,
    Reference,
    read_reference,
    refer,
    write_reference,
)
from fuseconv.parity.report import Report
from fuseconv.parity.verification import verify
from fuseconv.program.captured import Program
from fuseconv.targets import TARGETS, Context

CASES = (
    "given", "smallest", "largest batch", "largest seq", "random", "zeros and large", "all true", "all false",
    *SPECIAL,
)  # fmt: skip


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Says whether two tensors are the same, bit by bit: NaN is not equal to itself."""
    flat = (first.reshape(-1).contiguous().view(torch.uint8), second.reshape(-1).contiguous().view(torch.uint8))
    return first.shape == second.shape and torch.equal(*flat)


def test_the_cases_are_the_given_one_every_kind_of_size_and_the_extremes(original: Program) -> None:
    chosen = {case.name: case.inputs for case in cases(original)}
    assert list(chosen) == list(CASES)
    assert all(torch.equal(a, b) for a, b in zip(chosen["given"], original.examples, strict=True))
    assert chosen["smallest"][0].shape == (1, 1, 8)
    assert chosen["largest batch"][0].shape[0] == 16
    assert chosen["largest seq"][0].shape[1] == 32
    x = chosen["zeros and large"][0]
    assert x[0].eq(0).all()
    assert x[1].abs().max() > 10
    for inputs in chosen.values():
        original.contract.bind(inputs, {})
    again = {case.name: case.inputs for case in cases(original)}
    assert all(same_bits(a, b) for name in chosen for a, b in zip(chosen[name], again[name], strict=True))


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"), [(1 << 20, 1 << 22, 32), (500, 1 << 22, 8), (1 << 20, 300, 8)]
)
def test_large_sizes_are_halved_until_they_are_affordable(
    inputs: int, outputs: int, expected: int, original: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuseconv.parity.cases.MAX_INPUT_ELEMENTS", inputs)
    monkeypatch.setattr("fuseconv.parity.cases.MAX_OUTPUT_ELEMENTS", outputs)
    largest = next(case for case in cases(original) if case.name == "largest seq")
    assert largest.inputs[0].shape[1] == expected


def test_sizes_at_which_an_assumption_fails_are_cases(original: Program) -> None:
    sizes = ({"batch": 3, "seq": 2}, {"batch": 1, "seq": 1}, {"batch": 1, "seq": 2})
    chosen = {case.name: case.inputs for case in cases(dataclasses.replace(original, unusual=sizes))}
    assert [name for name in chosen if name not in CASES] == ["batch = 3, seq = 2", "batch = 1, seq = 2"]
    assert chosen["batch = 3, seq = 2"][0].shape[:2] == (3, 2)


def test_a_static_contract_has_cases_too() -> None:
    program = small_bundle.program(torch.nn.Linear(8, 4), ("x=f32[3,8]",))
    assert [case.name for case in cases(program)] == ["given", "static", "zeros and large", *SPECIAL]


def test_a_right_bundle_passes_without_the_original(bundle: Path) -> None:
    report = verify(bundle)
    assert report.ok
    assert {row.target for row in report.rows} == set(TARGETS)
    assert {row.case for row in report.rows} == {*CASES}
    assert {row.output for row in report.rows} == {"output_0", "output_1", "output_2", "output_3"}
    value = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert value["ok"] is True
    assert value["targets"]["aoti"]["ok"] is True
    assert 0 < value["targets"]["onnx"]["rmse_vs_fp64"] < 1e-5
    assert len(value["rows"]) == len(report.rows)


def test_a_right_bundle_passes_against_the_original(bundle: Path, original: Program) -> None:
    assert verify(bundle, against=original).ok


def test_inputs_of_one_s_own_need_the_original(bundle: Path, original: Program) -> None:
    inputs = tuple(t[:2] for t in original.examples)
    report = verify(bundle, against=original, inputs=inputs)
    assert report.ok
    assert {row.case for row in report.rows} == {"given"}
    with pytest.raises(UsageError, match="need the original model"):
        verify(bundle, inputs=inputs)


@pytest.fixture(scope="module")
def wrong(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose TorchScript artifact computes something else."""
    folder = Path(shutil.copytree(bundle, tmp_path_factory.mktemp("wrong") / "wrong.fuseconv"))
    program = small_bundle.program(Other())
    TARGETS["torchscript"].write(program, folder, Context(folder))
    seal(folder, open_bundle(bundle))
    return folder


def failing(report: Report) -> set[tuple[str, str]]:
    return {(row.target, row.output) for row in report.rows if not row.row.ok}


def test_a_wrong_artifact_fails_by_name(wrong: Path, original: Program) -> None:
    for report in (verify(wrong), verify(wrong, against=original)):
        assert not report.ok
        assert failing(report) == {("torchscript", "output_1")}
        value = report.to_json()
        assert value["targets"]["torchscript"]["max_abs"] == pytest.approx(1e-3, rel=0.1)
        assert "float64" in value["targets"]["torchscript"]["reason"]
        assert value["targets"]["export"]["ok"] is True


def test_an_artifact_that_fails_is_a_failing_row(bundle: Path, tmp_path: Path) -> None:
    class Fails(torch.nn.Module):
        def forward(self, x: Tensor, skip: Tensor, keep: Tensor) -> tuple[Tensor, ...]:
            narrow = torch.nn.functional.linear(x[:, :, 1:].reshape(-1, 7), torch.ones(7, 7))
            return narrow, narrow, keep.sum(1), ~keep

    folder = Path(shutil.copytree(bundle, tmp_path / "fails.fuseconv"))
    TARGETS["torchscript"].write(small_bundle.program(Fails()), folder, Context(folder))
    seal(folder, open_bundle(bundle))
    report = verify(folder)
    assert failing(report) == {("torchscript", "output_0"), ("torchscript", "output_1")}
    assert all("shape" in row.row.reason for row in report.rows if not row.row.ok)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (("x=f32[batch:1..16,seq:1..32,8]", "skip=f32[batch,seq,8]", "mask=bool[batch,seq]"), "mask"),
        (("x=f32[batch:1..8,seq:1..32,8]", "skip=f32[batch,seq,8]", "keep=bool[batch,seq]"), r"batch:1\.\.8"),
    ],
)
def test_another_model_is_a_usage_error(inputs: tuple[str, ...], message: str, bundle: Path, original: Program) -> None:
    other = dataclasses.replace(
        original, contract=dataclasses.replace(original.contract, inputs=parse_inputs(list(inputs)))
    )
    with pytest.raises(UsageError, match=message) as caught:
        verify(bundle, against=other)
    assert caught.value.where == "--against"


DTYPES = ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool", "c64", "c128")


@pytest.mark.parametrize("dtype", DTYPES)
def test_references_of_every_dtype_come_back_as_they_were(dtype: str, tmp_path: Path) -> None:
    class Same(torch.nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x.clone(), x[:1].expand(4, 3)

    program = small_bundle.program(Same(), (f"x={dtype}[n:1..9,3]",))
    references = refer(program, cases(program))
    write_reference(tmp_path / REFERENCE, references, program.contract)
    back = read_reference(tmp_path / REFERENCE, program.contract)
    assert [reference.case.name for reference in back] == [reference.case.name for reference in references]
    for one, other in zip(references, back, strict=True):
        pairs = zip(
            (*one.case.inputs, *one.original, *one.fp64),
            (*other.case.inputs, *other.original, *other.fp64),
            strict=True,
        )
        assert all(a.dtype == b.dtype and same_bits(a, b) for a, b in pairs)


def test_a_reference_of_another_contract_is_refused(bundle: Path) -> None:
    with pytest.raises(RefusedError, match="does not fit the contract"):
        read_reference(bundle / REFERENCE, Contract(parse_inputs(["y=f32[2]"]), ("z",)))


class Tiny(torch.nn.Module):
    """Gives outputs of 1e-7 times a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(1e-7 * factor * torch.randn(8, 8, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


@pytest.mark.parametrize("factor", [0.0, 0.5, 2.0])
def test_a_bundle_of_tiny_outputs_whose_weights_were_changed_and_sealed_again_fails(
    factor: float, bundle: Path, tmp_path: Path
) -> None:
    right, wrong = (small_bundle.program(Tiny(one), ["x=f32[n:1..9,8]"]) for one in (1.0, factor))
    write_reference(tmp_path / REFERENCE, refer(right, cases(right)), right.contract)
    manifest = open_bundle(bundle).model_copy(update={"contract": right.contract, "libraries": []})
    for program, ok in ((right, True), (wrong, False)):
        path = TARGETS["onnx"].write(program, tmp_path, Context(tmp_path)).as_posix()
        seal(tmp_path, manifest.model_copy(update={"targets": {"onnx": path}, "files": {}}))
        assert verify(tmp_path).ok is ok


def test_kinds_and_reasons_of_cases_come_back_as_they_were(bundle: Path, tmp_path: Path) -> None:
    contract = open_bundle(bundle).contract
    first, second, *_ = read_reference(bundle / REFERENCE, contract)
    special = dataclasses.replace(first, case=dataclasses.replace(first.case, name="NaN", kind="special"))
    untried = Reference(Case("integers", (), untried="the model takes none"), (), ())
    write_reference(tmp_path / REFERENCE, [special, untried, second], contract)
    back = read_reference(tmp_path / REFERENCE, contract)
    assert [(one.case.name, one.case.kind, one.case.untried) for one in back] == [
        ("NaN", "special", ""), (second.case.name, "ordinary", ""), ("integers", "ordinary", "the model takes none"),
    ]  # fmt: skip
    assert verification.compare_case("export", contract, back[-1], lambda _: ()) == []


def test_a_reference_without_a_case_proves_nothing_and_is_refused(bundle: Path, tmp_path: Path) -> None:
    contract = open_bundle(bundle).contract
    untried = Reference(Case("integers", (), untried="the model takes none"), (), ())
    for none in ([], [untried]):
        write_reference(tmp_path / REFERENCE, none, contract)
        with pytest.raises(RefusedError, match="has no case"):
            read_reference(tmp_path / REFERENCE, contract)
    assert not Report(()).ok


def test_the_truth_is_nearer_than_the_original(original: Program) -> None:
    (reference,) = refer(original, cases(original)[:1])
    assert reference.original[0].dtype == torch.float32
    assert reference.fp64[0].dtype == torch.float64
    exact = Block(fused=False).double().eval()
    x, skip, keep = original.examples
    with torch.no_grad():
        expected = exact(x.double(), skip.double(), keep)
    torch.testing.assert_close(reference.fp64[0], expected[0], rtol=1e-12, atol=1e-12)
    assert (reference.original[0] - expected[0]).abs().max() > 1e-9

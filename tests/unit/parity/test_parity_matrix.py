"""`fuseconv verify --all-runtimes`: every cell that runs here is compared; the others give the reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from support import ROOT, small_bundle
from support.others import Other

from fuseconv import cli
from fuseconv.bundle.manifest import open_bundle, seal
from fuseconv.errors import UnsupportedError, UpstreamError, UsageError
from fuseconv.parity import matrix
from fuseconv.parity.matrix import ROWS, RUNTIMES, Matrix
from fuseconv.program.captured import Program
from fuseconv.runtime import cpp
from fuseconv.targets import TARGETS, Context

pytestmark = pytest.mark.timeout(1200)

ON_CPU = {
    **{(row, runtime): "ok" for row in ROWS for runtime in RUNTIMES},
    **{(row, runtime): "unavailable" for row in ("torchscript+graph", "aoti+graph") for runtime in RUNTIMES},
    ("export", "cpp"): "unavailable",
}
"""What the small bundle's cells are, by row and runtime, on a machine that has all there is for a CPU."""


@pytest.fixture
def program(programs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes the fuseconv-run of the sample the one that is found."""
    monkeypatch.setenv(cpp.VARIABLE, str(programs / cpp.NAME))
    return programs / cpp.NAME


@contextmanager
def silent(step: str) -> Iterator[None]:
    yield


def matrix_of(bundle: Path, program: Path | None, **options: object) -> Matrix:
    manifest = open_bundle(bundle)
    return matrix.verify_runtimes(bundle, manifest, program=program, progress=silent, **options)  # type: ignore[arg-type]


def statuses(matrix: Matrix) -> dict[tuple[str, str], str]:
    return {(cell["row"], cell["runtime"]): cell["status"] for cell in matrix.to_json()["cells"]}


def reason(matrix: Matrix, row: str, runtime: str) -> str:
    return next(c["reason"] for c in matrix.to_json()["cells"] if (c["row"], c["runtime"]) == (row, runtime))


def copied(bundle: Path, folder: Path) -> Path:
    return Path(shutil.copytree(bundle, folder / "copy.fuseconv"))


def without(bundle: Path, *targets: str) -> None:
    manifest = open_bundle(bundle)
    for target in targets:
        (bundle / manifest.targets[target]).unlink()
    for folder in [path for path in bundle.iterdir() if path.is_dir() and not any(path.iterdir())]:
        folder.rmdir()
    left = {name: path for name, path in manifest.targets.items() if name not in targets}
    seal(bundle, manifest.model_copy(update={"targets": left}))


def test_every_cell_that_can_run_here_passes(bundle: Path, program: Path) -> None:
    matrix = matrix_of(bundle, program)
    assert statuses(matrix) == ON_CPU
    assert matrix.error(str(bundle)) is None
    result = json.loads(json.dumps(matrix.to_json(), allow_nan=False))
    assert (result["ok"], result["device"], result["program"]) == (True, "cpu", str(program))
    ran = sum(status == "ok" for status in ON_CPU.values())
    assert len(result["rows"]) == ran * 11 * 4  # cases, outputs
    for cell in result["cells"]:
        if cell["status"] == "ok":
            assert 0 < cell["rmse_vs_fp64"] < 1e-5
        else:
            assert cell["reason"]
            assert cell["fix"]


def test_the_original_and_inputs_of_ones_own_are_taken(bundle: Path, program: Path, original: Program) -> None:
    inputs = tuple(value[:2] for value in original.examples)
    matrix = matrix_of(bundle, program, against=original, inputs=inputs)
    assert statuses(matrix) == ON_CPU
    assert {row.case for cell in matrix.cells for row in cell.rows} == {"given"}


def test_only_the_targets_that_are_named_are_in_the_matrix(bundle: Path) -> None:
    matrix = matrix_of(bundle, None, targets=("torchscript",))
    assert {cell.name for cell in matrix.cells} == {"torchscript", "torchscript+graph"}


def test_without_the_program_cpp_is_not_here(bundle: Path) -> None:
    matrix = matrix_of(bundle, None)
    assert statuses(matrix) == {cell: "unavailable" if cell[1] == "cpp" else status for cell, status in ON_CPU.items()}
    assert reason(matrix, "aoti", "cpp") == "fuseconv-run is not built"
    assert matrix.error("") is None


def test_targets_that_the_bundle_has_not_are_not_here(bundle_copy: Path, program: Path) -> None:
    without(bundle_copy, "aoti", "onnx-plugin")
    matrix = matrix_of(bundle_copy, program)
    gone = ("aoti", "aoti+graph", "onnx-plugin")
    assert statuses(matrix) == {cell: "unavailable" if cell[0] in gone else s for cell, s in ON_CPU.items()}
    assert reason(matrix, "aoti+graph", "python") == "the bundle has no target aoti"


def test_a_wrong_artifact_fails_in_both_runtimes(
    bundle: Path, program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(bundle, tmp_path)
    TARGETS["torchscript"].write(small_bundle.program(Other()), folder, Context(tmp_path))
    seal(folder, open_bundle(bundle))
    capsys.readouterr()
    status = cli.main(["verify", str(folder), "--all-runtimes", "--json"])
    record = json.loads(capsys.readouterr().out)
    assert status == 1
    assert record["error"]["code"] == "parity"
    assert "torchscript in python, torchscript in cpp" in record["error"]["message"]
    failing = {(cell["row"], cell["runtime"]) for cell in record["result"]["cells"] if cell["status"] == "fail"}
    assert failing == {("torchscript", runtime) for runtime in RUNTIMES}
    wrong = {(row["runtime"], row["target"], row["output"]) for row in record["result"]["rows"] if not row["ok"]}
    assert wrong == {(runtime, "torchscript", "output_1") for runtime in RUNTIMES}


def test_an_artifact_that_fails_is_a_failing_cell_in_both_runtimes(bundle: Path, program: Path, tmp_path: Path) -> None:
    folder = copied(bundle, tmp_path)
    (folder / "torchscript/model.pt").write_bytes(b"no archive")
    seal(folder, open_bundle(bundle))
    matrix = matrix_of(folder, program)
    assert statuses(matrix) == {cell: "fail" if cell[0] == "torchscript" else s for cell, s in ON_CPU.items()}
    for runtime in RUNTIMES:
        assert reason(matrix, "torchscript", runtime).startswith("the target torchscript failed to load: ")


def test_a_program_that_dies_fails_its_cells_and_no_other(bundle: Path, tmp_path: Path) -> None:
    program = tmp_path / "fuseconv-run"
    program.write_text("#!/bin/sh\nkill -SEGV $$\n")
    program.chmod(0o755)
    matrix = matrix_of(bundle, program)
    runs = {cell for cell, status in ON_CPU.items() if status == "ok" and cell[1] == "cpp"}
    assert statuses(matrix) == {cell: "fail" if cell in runs else status for cell, status in ON_CPU.items()}
    assert "exited with -11" in reason(matrix, "aoti", "cpp")


def test_what_was_made_elsewhere_is_not_here_in_both_runtimes(bundle_copy: Path, program: Path) -> None:
    manifest = open_bundle(bundle_copy)
    environment = manifest.environment.model_copy(update={"torch": "99.1.0"})
    seal(bundle_copy, manifest.model_copy(update={"environment": environment}))
    matrix = matrix_of(bundle_copy, program)
    by_torch = ("torchscript", "export", "aoti")
    assert statuses(matrix) == {cell: "unavailable" if cell[0] in by_torch else s for cell, s in ON_CPU.items()}
    for runtime in RUNTIMES:
        assert "torch 99.1.0, but this is 2." in reason(matrix, "aoti", runtime)


def test_nothing_that_runs_is_no_proof(bundle_copy: Path, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = open_bundle(bundle_copy)
    environment = manifest.environment.model_copy(update={"machine": "sparc"})
    seal(bundle_copy, manifest.model_copy(update={"environment": environment}))
    assert isinstance(matrix_of(bundle_copy, program).error(""), UnsupportedError)
    status = cli.main(["verify", str(bundle_copy), "--all-runtimes"])
    said = capsys.readouterr()
    assert status == 4
    assert "a sparc machine" in said.out
    assert "no target of the bundle runs on this machine" in said.err


def test_a_bundle_for_a_gpu_needs_one(bundle_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    manifest = open_bundle(bundle_copy)
    contract = type(manifest.contract)(manifest.contract.inputs, manifest.contract.outputs, "cuda")
    seal(bundle_copy, manifest.model_copy(update={"contract": contract}))
    for arguments in (["--all-runtimes"], []):
        assert cli.main(["verify", str(bundle_copy), *arguments]) == 5


def test_the_table_has_a_line_a_target_and_every_reason_once(
    bundle: Path, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify", str(bundle), "--all-runtimes"]) == 0
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    assert ["cpu", "Python", "C++"] in lines
    for row in ROWS:
        assert any(line[:1] == [row] for line in lines)
    assert text.count("CUDA graphs need a CUDA device") == 1
    assert "unavailable: export in C++\n  torch.export programs can be loaded only in Python\n  fix: " in text


# ---- the program ----


def test_the_program_is_the_one_that_is_named_then_on_the_path_then_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(cpp.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cpp.find() is None
    places = {}
    for name in ("cache", "path", "named"):
        places[name] = cpp._built() if name == "cache" else tmp_path / ("other" * (name == "named")) / "fuseconv-run"
        places[name].parent.mkdir(parents=True, exist_ok=True)
        places[name].write_text("#!/bin/sh\n")
        places[name].chmod(0o755)
        if name == "named":
            monkeypatch.setenv(cpp.VARIABLE, str(places[name]))
        assert cpp.find() == places[name]
    monkeypatch.setenv(cpp.VARIABLE, str(tmp_path))
    with pytest.raises(UsageError, match="does not exist"):
        cpp.find()


def test_the_build_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cpp, "_tool", lambda name: None)
    with pytest.raises(UnsupportedError, match="cannot be built without CMake, ninja or make, a C"):
        cpp.build()


def test_a_build_that_fails_shows_the_log_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "/bin/false")
    with pytest.raises(UpstreamError, match=r"failed to build:[\s\S]*/bin/false"):
        cpp.build()
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


@pytest.mark.long
def test_the_program_is_built_once_and_says_what_it_runs(cpp_program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(ROOT / "build" / "cache"))
    program, changed = cpp_program, cpp_program.stat().st_mtime_ns
    assert cpp.build() == program
    assert program.stat().st_mtime_ns == changed
    versions = cpp.versions(program)
    assert versions["torch"] == torch.__version__.split("+")[0]
    import onnxruntime

    assert versions["onnxruntime"] == onnxruntime.__version__ or versions["onnxruntime"].startswith("- ")

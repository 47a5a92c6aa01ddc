"""`fuseconv doctor`: what this machine can do per target, and which targets of a bundle load, without loading it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from support.machines import ELSEWHERE

from fuseconv import cli
from fuseconv.bundle.manifest import open_bundle, seal
from fuseconv.doctor import abilities
from fuseconv.errors import UnsupportedError
from fuseconv.runtime import cpp
from fuseconv.runtime.model import load
from fuseconv.targets import TARGETS

Doctor = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    def run(*arguments: object) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        status = cli.main(["doctor", *map(str, arguments), "--json"])
        record = json.loads(capsys.readouterr().out)
        assert record["ok"] == (status == 0)
        return status, record

    return run


def by_name(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {finding["name"]: finding for finding in record["result"]["findings"]}


def made_elsewhere(bundle: Path, **fields: str) -> None:
    manifest = open_bundle(bundle)
    seal(bundle, manifest.model_copy(update={"environment": manifest.environment.model_copy(update=fields)}))


# ---- a bundle ----


def test_a_bundle_of_this_machine_can_be_loaded(doctor: Doctor, bundle: Path) -> None:
    status, record = doctor(bundle)
    assert status == 0
    findings = by_name(record)
    assert all(finding["ok"] for finding in findings.values())
    assert findings["files"]["found"] == f"{len(open_bundle(bundle).files)}, all match the manifest"
    assert findings["aoti"]["found"] == "loads here (default)"
    assert {name for name in findings if name in TARGETS} == set(TARGETS)


def test_nothing_of_a_bundle_is_loaded(doctor: Doctor, bundle_copy: Path, loaded: Callable[[], bool]) -> None:
    manifest = open_bundle(bundle_copy)
    for path in manifest.targets.values():
        (bundle_copy / path).write_bytes(b"no artifact")
    seal(bundle_copy, manifest)
    assert doctor(bundle_copy)[0] == 0
    assert not loaded()


@pytest.mark.parametrize(("field", "value", "words"), dict.fromkeys((f, v, w) for f, v, _, w in ELSEWHERE))
def test_doctor_says_what_load_would_say(field: str, value: str, words: str, doctor: Doctor, bundle_copy: Path) -> None:
    made_elsewhere(bundle_copy, **{field: value})
    status, record = doctor(bundle_copy)
    findings = by_name(record)
    assert any(words in findings[target]["found"] for target in TARGETS)
    for target in TARGETS:
        if findings[target]["ok"]:
            load(bundle_copy, target)
            continue
        with pytest.raises(UnsupportedError) as caught:
            load(bundle_copy, target)
        assert (findings[target]["found"], findings[target]["fix"]) == (caught.value.what, caught.value.fix)
    assert status == (0 if any("(default)" in finding["found"] for finding in findings.values()) else 4)


def test_the_preferred_target_decides_and_another_is_named(doctor: Doctor, bundle_copy: Path) -> None:
    made_elsewhere(bundle_copy, torch="99.1.0")
    status, record = doctor(bundle_copy)
    assert status == 4
    assert "the default target aoti does not load here: " in record["error"]["message"]
    assert record["error"]["hint"] == "convert the model on this machine, or load the target onnx, which loads here"
    made_elsewhere(bundle_copy, torch="2.0.0", cpu="AVX1024")
    status, record = doctor(bundle_copy)
    assert status == 0
    assert by_name(record)["export"]["found"] == "loads here (default)"
    assert by_name(record)["aoti"]["fix"] == "run `fuseconv add BUNDLE` on this machine, or load another target"
    made_elsewhere(bundle_copy, cpu="DEFAULT", onnxruntime="99.1.0")
    status, record = doctor(bundle_copy)
    assert status == 0
    assert [name for name, finding in by_name(record).items() if not finding["ok"]] == ["onnx", "onnx-plugin"]


@pytest.mark.parametrize(
    ("library", "targets", "status"),
    [
        ("libfuseconv_cpu.so", {"aoti", "export", "torchscript"}, 3),
        ("libfuseconv_ort_cpu.so", {"onnx-plugin"}, 0),
    ],
)
def test_a_library_that_all_may_write_is_said_of_the_targets_that_call_it(
    library: str, targets: set[str], status: int, doctor: Doctor, bundle_copy: Path
) -> None:
    (bundle_copy / "lib" / library).chmod(0o757)
    found, record = doctor(bundle_copy)
    assert found == status
    findings = by_name(record)
    assert {target for target in TARGETS if not findings[target]["ok"]} == targets
    for target in targets:
        assert findings[target]["fix"] == f"chmod o-w {bundle_copy}/lib/{library}"


def test_damage_is_an_error_that_names_the_file(doctor: Doctor, bundle_copy: Path) -> None:
    (bundle_copy / "plan.json").write_text("{")
    status, record = doctor(bundle_copy)
    assert status == 3
    assert "plan.json" in record["error"]["message"]


# ---- an ONNX Runtime that is too old ----


def test_an_old_onnx_runtime_is_said_by_doctor_and_by_load(
    doctor: Doctor, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "__version__", "1.26.0")
    with pytest.raises(UnsupportedError, match=r"ONNX Runtime 1\.26\.0 is older than 1\.27") as caught:
        load(bundle, "onnx")
    assert caught.value.fix == "install onnxruntime 1.27 or newer (onnxruntime-gpu for CUDA)"
    for target in ("onnx", "onnx-plugin"):
        assert by_name(doctor(bundle)[1])[target]["found"] == caught.value.what
    status, record = doctor()
    assert status == 0
    assert by_name(record)["onnxruntime"]["found"] == caught.value.what
    lacking = {(one["target"], one["action"]) for one in record["result"]["targets"] if not one["ok"]}
    assert {(target, action) for target in ("onnx", "onnx-plugin") for action in ("convert", "python")} <= lacking


# ---- the machine ----


def able(record: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["target"], one["action"]): one for one in record["result"]["targets"] if one["device"] == "cpu"}


def test_every_target_has_a_line_and_every_lack_a_remedy(
    doctor: Doctor, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cpp.VARIABLE, str(programs / cpp.NAME))
    status, record = doctor()
    assert status == 0
    found = able(record)
    assert set(found) == {(target, action) for target in TARGETS for action in abilities.ACTIONS}
    assert [which for which, one in found.items() if not one["ok"]] == [("export", "cpp")]
    assert all(one["fix"] for one in found.values() if not one["ok"])
    assert "torch 2." in by_name(record)["C++ runtime"]["found"]


@pytest.mark.parametrize(
    ("variable", "value", "lost", "fix"),
    [
        ("CXX", "/nowhere/c++", {("aoti", "convert")}, "install what is missing, or convert without the target aoti"),
        (
            cpp.VARIABLE,
            "/nowhere/fuseconv-run",
            {(target, "cpp") for target in TARGETS if target != "export"},
            "set it to the path of fuseconv-run, or unset it",
        ),
    ],
)
def test_what_is_missing_takes_its_targets_with_it(
    variable: str,
    value: str,
    lost: set[tuple[str, str]],
    fix: str,
    doctor: Doctor,
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(cpp.VARIABLE, str(programs / cpp.NAME))
    monkeypatch.setenv(variable, value)
    found = able(doctor()[1])
    assert {which for which, one in found.items() if not one["ok"]} == {*lost, ("export", "cpp")}
    assert {found[which]["fix"] for which in lost} == {fix}


def test_the_text_has_a_table_and_every_reason_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "load in C++" in text
    assert text.count("torch.export programs can be loaded only in Python") == 1

"""The command line from outside: exit statuses, the JSON object, three-line errors, and the time of --help."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ROOT
from torch import nn

from fuseconv import cli


class Gate(nn.Module):
    """Has one match of each of mul-add and linear-act."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(self.linear(x * scale + shift))


SWAPPED = {
    "rules": [
        {
            "name": "mul-add-swapped",
            "stage": "fuse",
            "doc": "Wrong on purpose: b and c are exchanged.",
            "match": ["p = aten.mul.Tensor(a, b)", "y = aten.add.Tensor(p, c)"],
            "where": ["same_shape(a, b, c)", "same_kind(a, b, c)"],
            "replace": ["y = fuseconv.mul_add.default(a, c, b)"],
        }
    ]
}


def save(module: nn.Module, path: Path) -> None:
    batch = torch.export.Dim("batch", min=1, max=16)
    args = tuple(torch.randn(3, 8) for _ in range(3))
    torch.export.save(torch.export.export(module.eval(), args, dynamic_shapes=({0: batch},) * 3), path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds gate.pt2, a model with a dynamic batch; a pickled module; a wrong rule; and gate.fuseconv, its bundle."""
    folder = tmp_path_factory.mktemp("cli")
    save(Gate(), folder / "gate.pt2")
    save(Gate(seed=1), folder / "other.pt2")
    torch.save(Gate().eval(), folder / "pickled.pt")
    (folder / "swapped.json").write_text(json.dumps(SWAPPED))
    (folder / "broken.json").write_text('{"rules": [{"name": "x",}]}')
    (folder / "named.json").write_text(json.dumps({"rules": [{**SWAPPED["rules"][0], "name": "Upper_Case"}]}))
    (folder / "empty.json").write_text("")
    (folder / "noise.bin").write_bytes(bytes(range(256)))
    assert cli.main(["convert", str(folder / "gate.pt2"), "--target", "export", "--target", "torchscript"]) == 0
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    status = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def as_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    status, out, _ = run(capsys, *arguments, "--json")
    record = json.loads(out)
    assert set(record) == {"schema", "ok", "command", "result", "error"}
    assert record["schema"] == 1
    assert record["ok"] == (status == 0)
    return status, record


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [(["--version"], 0, "fuseconv, version "), (["convrt"], 2, "did you mean `fuseconv convert`?")],
)
def test_the_package_is_run_as_the_command(words: list[str], status: int, said: str) -> None:
    done = subprocess.run([sys.executable, "-m", "fuseconv", *words], capture_output=True, text=True)
    assert done.returncode == status
    assert said in done.stdout + done.stderr


def test_help_comes_at_once() -> None:
    command = [sys.executable, "-m", "fuseconv", "--help"]
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)  # whatever else runs here
    assert min(times) < 0.3
    assert all(name in done.stdout for name in cli.COMMANDS)


@pytest.mark.parametrize(
    "arguments",
    [
        ("convert", "--help"),
        ("convert", "absent.pt2"),
        ("explain", "absent.pt2"),
        ("inspect", "absent"),
        ("verify", "absent.fuseconv"),
        ("bench", "absent.fuseconv"),
        ("convert", __file__, "--input", "x=f32["),
    ],
    ids=" ".join,
)
def test_what_needs_no_torch_imports_none(arguments: tuple[str, ...]) -> None:
    code = f"import sys; from fuseconv import cli; cli.main({list(arguments)}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, command, "--help")
    assert status == 0
    assert out.startswith(f"Usage: fuseconv {command}")


@pytest.mark.parametrize("words", [[], ["rules"]], ids=["fuseconv", "fuseconv rules"])
def test_a_group_alone_prints_its_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, *words)
    assert status == 2
    assert err.startswith("Usage: ")
    assert "fix:" not in err


def test_debug_may_stand_anywhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--debug", "inspect"], ["inspect", "--debug"]):
        status, _, err = run(capsys, *words, folder / "noise.bin")
        assert status == 3
        assert "Traceback" in err


def test_figures_are_a_line_a_row(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a terminal too narrow for them; texts are folded there, and not in a log."""
    monkeypatch.setenv("COLUMNS", "40")
    status, out, _ = run(capsys, "verify", folder / "gate.fuseconv", "-v")
    assert status == 0
    assert len(out.splitlines()) == 19  # a header, eight cases of two targets, and how many were run
    assert len(run(capsys, "verify", folder / "gate.fuseconv")[1].splitlines()) == 5
    folded = run(capsys, "doctor", folder / "gate.fuseconv")[1]
    monkeypatch.delenv("COLUMNS")
    assert len(run(capsys, "doctor", folder / "gate.fuseconv")[1].splitlines()) < len(folded.splitlines())


FAILURES = {
    "no command": (["convrt"], 2, "did you mean `fuseconv convert`?"),
    "no flag": (["convert", "{}/gate.pt2", "--targets", "onnx"], 2, "--target"),
    "no model": (["convert"], 2, "MODEL"),
    "no file": (["convert", "{}/absent.pt"], 6, "absent.pt"),
    "no flag's word": (["convert", "{}/gate.pt2", "--trust"], 2, "fuseconv convert --help"),
    "no target": (["convert", "{}/gate.pt2", "--target", "tflite"], 2, "use one of"),
    "nothing to allow": (["convert", "{}/gate.pt2", "--allow", "gelutanh"], 2, "use one of non-finite"),
    "no inputs": (["convert", "{}/gate.pt2", "--inputs", "{}/absent.npz"], 6, "absent.npz"),
    "a model twice": (["convert", "{}/gate.pt2", "--model", "models:gate"], 2, "remove --model"),
    "no bundle": (["verify", "{}/absent"], 2, "does not exist"),
    "bad input": (["convert", "{}/gate.pt2", "--input", "x=f32[batch:]"], 2, "NAME=DTYPE"),
    "empty range": (["convert", "{}/gate.pt2", "--input", "x=f32[batch:4..1]"], 2, "batch:1..4"),
    "unknown dtype": (["convert", "{}/gate.pt2", "--dtype", "f8"], 2, "f32"),
    "unknown kind of trust": (["convert", "{}/gate.pt2", "--trust", "all"], 2, "pickle"),
    "output taken": (["convert", "{}/gate.pt2", "-o", "{}/noise.bin", "--target", "export"], 2, "choose another name"),
    "pickle": (["convert", "{}/pickled.pt"], 3, "--trust pickle"),
    "noise": (["inspect", "{}/noise.bin"], 3, "noise.bin"),
    "rules without examples": (["rules", "check", "{}/swapped.json"], 1, "mul-add-swapped, hit"),
    "a rule's name": (["rules", "check", "{}/named.json"], 2, "not 'Upper_Case'"),
    "no JSON": (["rules", "check", "{}/empty.json"], 2, "a value is missing"),
    "rules not JSON": (["convert", "{}/gate.pt2", "--rules", "{}/broken.json"], 2, "broken.json:1"),
    "no rules": (["rules", "check", "{}/absent.json"], 2, "absent.json"),
    "no rule to leave out": (["explain", "{}/gate.pt2", "--no-rule", "linear-actt"], 2, "did you mean linear-act?"),
    "no rule": (["rules", "show", "linear-actt"], 2, "did you mean linear-act?"),
    "no plan": (["convert", "{}/gate.pt2", "--plan", "{}/absent.json"], 6, "absent.json"),
    "a plan under a file": (["match", "{}/gate.pt2", "-o", "{}/noise.bin/plan.json"], 6, "is not a folder"),
    "a plan in no folder": (["match", "{}/gate.pt2", "-o", "{}/absent/plan.json"], 6, "does not exist"),
    "outputs in a folder's place": (
        ["run", "{}/gate.fuseconv", "--inputs", "{}/noise.bin", "-o", "{}"],
        6,
        "the output path is a folder",
    ),
    "against another": (["verify", "{}/gate.fuseconv", "--against", "{}/other.pt2"], 2, "sha256"),
    "against another form": (["verify", "{}/gate.fuseconv", "--against", "{}/noise.bin"], 2, "sha256"),
    "inputs alone": (["verify", "{}/gate.fuseconv", "--inputs", "{}/noise.bin"], 2, "--against"),
    "device alone": (["verify", "{}/gate.fuseconv", "--device", "cuda"], 2, "add --against"),
    "peer alone": (["bench", "{}/gate.fuseconv", "--peer", "compile"], 2, "add --against"),
    "dtype alone": (["bench", "{}/gate.fuseconv", "--dtype", "f16"], 2, "add --against"),
}


REPORTED = {"rules without examples"}
"""Failures that are found by what a command reports."""


@pytest.mark.parametrize("name", FAILURES)
def test_failures_say_what_where_and_fix(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, expected, words = FAILURES[name]
    arguments = [argument.format(folder) for argument in arguments]
    status, out, err = run(capsys, *arguments)
    assert status == expected
    assert (out == "") == (name not in REPORTED)
    assert words in err
    assert "Traceback" not in err
    again, record = as_json(capsys, *arguments)
    assert again == expected
    assert record["error"]["message"]
    assert record["error"]["hint"]


def test_a_rule_is_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    explain = ["explain", folder / "gate.pt2"]
    told = as_json(capsys, *explain)[1]["result"]["rules"]
    assert {"linear-act", "mul-add"} <= {rule["rule"] for rule in told if rule["applied"]}
    left = as_json(capsys, *explain, "--no-rule", "linear-act")[1]["result"]["rules"]
    assert "mul-add" in {rule["rule"] for rule in left if rule["applied"]}
    assert "linear-act" not in {rule["rule"] for rule in left}


def test_a_wrong_rule_is_left_out_and_said_to_be(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "right.fuseconv"
    wrong = ["convert", folder / "gate.pt2", "--rules", folder / "swapped.json", "--target", "export", "-o", output]
    status, out, _ = run(capsys, *wrong)
    assert status == 0  # the bundle is right
    assert "matches rejected and left unfused: 1" in out
    assert "mul-add-swapped" in out
    assert "rmse against float64" in out
    assert run(capsys, "verify", output)[0] == 0
    (rejected,) = [miss for miss in json.loads((output / "plan.json").read_text())["misses"] if miss["rejected"]]
    status, record = as_json(capsys, *wrong)
    assert status == 0
    assert [miss["reason"] for miss in record["result"]["near_misses"] if miss["rejected"]] == [rejected["reason"]]
    assert rejected["reason"] in run(capsys, "explain", "--try", *wrong[1:4])[1]
    status, record = as_json(capsys, *wrong[:-1], tmp_path / "strict.fuseconv", "--strict")
    assert status == 1
    assert record["error"]["code"] == "parity"
    assert rejected["reason"] in record["error"]["message"]
    assert not (tmp_path / "strict.fuseconv").exists()
    assert as_json(capsys, *wrong, "--strict", "--dry-run")[0] == 1


def test_a_wrong_plan_leaves_nothing_behind(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, output = tmp_path / "plan.json", tmp_path / "out" / "wrong.fuseconv"
    output.parent.mkdir()
    assert run(capsys, "match", folder / "gate.pt2", "-o", path)[0] == 0
    plan = json.loads(path.read_text())
    assert plan["steps"][0]["rule"] == "mul-add"
    bindings = plan["steps"][0]["bindings"]
    bindings["b"], bindings["c"] = bindings["c"], bindings["b"]
    path.write_text(json.dumps(plan))
    wrong = ["convert", folder / "gate.pt2", "--plan", path, "--target", "export", "-o", output]
    status, _, err = run(capsys, *wrong)
    assert status == 1
    assert "output" in err
    assert list(output.parent.iterdir()) == []
    assert run(capsys, *wrong, "--allow-mismatch")[0] == 0
    assert "fails" in run(capsys, "inspect", output)[1]
    status, out, err = run(capsys, "verify", output)
    assert status == 1
    assert "FAIL" in out
    assert "target export" in err


def test_convert_reports_what_it_did(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "gate.fuseconv"
    status, record = as_json(capsys, "convert", folder / "gate.pt2", "--target", "export", "-o", output)
    result = record["result"]
    assert status == 0
    assert result["bundle"] == str(output)
    assert {(fusion["rule"], fusion["op"], fusion["status"]) for fusion in result["fusions"]} == {
        ("mul-add", "fuseconv.mul_add.default", "applied"),
        ("linear-act", "fuseconv.linear_act.default", "applied"),
    }
    assert set(result["targets"]) == {"export"}
    assert result["targets"]["export"]["parity"]["ok"]
    assert (output / result["targets"]["export"]["path"]).is_file()


def test_dry_run_writes_nothing(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "gate.fuseconv"
    status, record = as_json(capsys, "convert", folder / "gate.pt2", "--dry-run", "-o", output)
    assert status == 0
    assert len(record["result"]["fusions"]) == 2
    assert not output.exists()


def test_a_plan_is_written_edited_and_executed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = tmp_path / "plan.json", tmp_path / "gate.fuseconv"
    assert run(capsys, "match", folder / "gate.pt2", "-o", path)[0] == 0
    plan = json.loads(path.read_text())
    assert [step["rule"] for step in plan["steps"]] == ["mul-add", "linear-act"]
    del plan["steps"][1]
    path.write_text(json.dumps(plan))
    convert = ["convert", folder / "gate.pt2", "--plan", path, "--target", "export", "-o", output]
    status, record = as_json(capsys, *convert)
    assert status == 0
    assert [fusion["rule"] for fusion in record["result"]["fusions"]] == ["mul-add"]


def test_verify_inspect_and_doctor_read_a_bundle(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = folder / "gate.fuseconv"
    status, record = as_json(capsys, "verify", bundle)
    assert status == 0
    assert {row["target"] for row in record["result"]["rows"]} == {"export", "torchscript"}
    assert as_json(capsys, "verify", bundle, "--against", folder / "gate.pt2")[0] == 0
    assert "x=f32[dim0:1..16,8]" in run(capsys, "inspect", bundle)[1]
    assert as_json(capsys, "inspect", bundle)[1]["result"]["dtype"] == "f32"
    assert as_json(capsys, "inspect", folder / "gate.pt2")[1]["result"]["parameters"] == 72
    findings = as_json(capsys, "doctor", bundle)[1]["result"]["findings"]
    assert all(finding["ok"] for finding in findings)
    assert "torch" in run(capsys, "doctor")[1]


def test_the_original_is_read_in_the_dtype_of_the_bundle(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, model = tmp_path / "half.fuseconv", folder / "gate.pt2"
    assert run(capsys, "convert", model, "--dtype", "bf16", "--target", "export", "-o", bundle)[0] == 0
    assert run(capsys, "verify", bundle, "--against", model)[0] == 0
    status, record = as_json(capsys, "bench", bundle, "--against", model, "--rounds", "1")
    assert (status, [row["name"] for row in record["result"]["rows"]]) == (0, ["export", "eager"])


def test_run_computes_what_the_module_computes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file, save_file

    inputs = {name: torch.randn(5, 8) for name in ("x", "scale", "shift")}
    save_file(inputs, tmp_path / "in.safetensors")
    for target in ("export", "torchscript"):
        output = tmp_path / f"{target}.safetensors"
        arguments = ["run", folder / "gate.fuseconv", "--inputs", tmp_path / "in.safetensors", "-o", output]
        assert run(capsys, *arguments, "--target", target)[0] == 0
        (found,) = load_file(output).values()
        torch.testing.assert_close(found, Gate().eval()(**inputs).detach())


def test_one_flipped_bit_is_refused_by_name(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    bundle = Path(shutil.copytree(folder / "gate.fuseconv", tmp_path / "copy.fuseconv"))
    damaged = bundle / "export" / "model.pt2"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    status, record = as_json(capsys, "verify", bundle)
    assert status == 3
    assert "export/model.pt2" in record["error"]["message"]


def test_rules_are_listed_shown_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    rules = as_json(capsys, "rules", "list")[1]["result"]["rules"]
    assert "add-layer-norm" in {rule["name"] for rule in rules}
    assert "fuseconv.linear_act.default" in run(capsys, "rules", "show", "linear-act")[1]
    status, record = as_json(capsys, "rules", "check", "rules/pointwise")
    assert status == 0
    assert all(check["ok"] for check in record["result"]["checks"])


def test_interruption_and_bugs_have_their_own_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fuseconv.rulebook import own_rules

    for error, expected in (
        (KeyboardInterrupt(), 130),
        (RuntimeError("boom"), 7),
        (MemoryError(), 5),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), 5),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), 5),
    ):

        def fail(*_: object, error: BaseException = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(own_rules, "load_rules", fail)
        status, record = as_json(capsys, "rules", "list")
        assert status == expected
        assert record["error"]["hint"]

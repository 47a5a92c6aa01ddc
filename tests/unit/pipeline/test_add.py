"""`fuseconv add`: a bundle gets the package of another machine, which here is a process with fewer instructions."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from safetensors.torch import load_file, save_file
from support.heads import Heads
from support.machines import command_elsewhere, elsewhere, fewer_instructions, hashes

import fuseconv
from fuseconv import cli
from fuseconv.bundle.files import MANIFEST, SIGNATURE, WEIGHTS
from fuseconv.bundle.manifest import open_bundle, read_manifest, seal
from fuseconv.errors import FileError, FuseconvError, ParityError, UnsupportedError, UsageError
from fuseconv.parity.reference import REFERENCE
from fuseconv.pipeline.swap import swap
from fuseconv.runtime.environment import environment
from fuseconv.runtime.model import load
from fuseconv.weights.table import Table

pytestmark = [pytest.mark.compiles, pytest.mark.timeout(600)]

HERE = environment("cpu").architecture
CAPABILITY = torch.backends.cpu.get_cpu_capability().lower()
X = torch.linspace(-2, 2, 160).reshape(2, 5, 16)

LOADED = """
import json, sys, warnings, torch, fuseconv
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    model = fuseconv.load(sys.argv[1])
paths = [line.split()[-1] for line in open("/proc/self/maps") if "aotinductor" in line]
outputs = model(torch.linspace(-2, 2, 160).reshape(2, 5, 16)).tolist()
told = [str(one.message) for one in said if issubclass(one.category, RuntimeWarning)]
print(json.dumps([model.target, model.passed_over, sorted(set(paths)), outputs, told]))
"""


@pytest.fixture(scope="module")
def lower() -> str:
    return fewer_instructions()


@pytest.fixture(scope="module")
def one(packages_folder: Path) -> Path:
    return packages_folder / "one.fuseconv"


@pytest.fixture(scope="module")
def two(packages_folder: Path) -> Path:
    return packages_folder / "two.fuseconv"


@pytest.fixture
def copy(two: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two, tmp_path / "copy.fuseconv"))


@pytest.fixture
def foreign(one: Path, tmp_path: Path) -> Path:
    """A bundle whose package is for a CPU with more instructions than any has."""
    path = Path(shutil.copytree(one, tmp_path / "foreign.fuseconv"))
    change(path, environment=open_bundle(path).environment.model_copy(update={"cpu": "AVX1024"}))
    return path


def change(bundle: Path, **fields: Any) -> None:
    seal(bundle, open_bundle(bundle).model_copy(update=fields))


def loaded_on(capability: str, bundle: Path) -> tuple[str, dict[str, str], list[str], torch.Tensor, list[str]]:
    target, passed_over, paths, outputs, said = json.loads(elsewhere(capability, LOADED, bundle))
    return target, passed_over, paths, torch.tensor(outputs), said


def instructions(package: Path) -> str:
    (library,) = package.parent.rglob("*.so")
    return subprocess.run(["objdump", "-d", library], capture_output=True, text=True, check=True).stdout


# ---- the package that is added ----


def test_the_package_of_another_machine_is_added_with_its_parity(
    packages_folder: Path, one: Path, two: Path, lower: str
) -> None:
    record = json.loads((packages_folder / "added.json").read_text())
    other = f"x86_64-{lower}"
    assert record["result"]["architectures"] == [HERE, other]
    assert (record["result"]["architecture"], record["result"]["added"]) == (other, True)
    before, after = open_bundle(one), open_bundle(two)
    assert (before.schema_version, after.schema_version) == (2, 5)
    assert '"packages"' not in (one / MANIFEST).read_text()
    (package,) = after.packages
    assert (package.target, package.path) == ("aoti", f"aoti-{other}/model.pt2")
    assert package.environment.architecture == other
    assert {(row["case"], row["ok"]) for row in package.parity} == {
        (row["case"], True) for row in before.parity if row["target"] == "aoti"
    }
    assert after.updating_packages([]).model_copy(update={"files": before.files}) == before


def test_every_other_file_and_the_weights_stay_as_they_are(one: Path, two: Path) -> None:
    before, after = hashes(one), hashes(two)
    assert {name: after[name] for name in before if name != MANIFEST} == {
        name: digest for name, digest in before.items() if name != MANIFEST
    }
    (package,) = open_bundle(two).packages
    assert not (two / package.path).with_name(WEIGHTS).exists()
    first, added = Table.of(two / "aoti/model.pt2"), Table.of(two / package.path)
    assert first is not None
    assert added is not None
    assert (added.program, added.files, added.keys) == (first.program, first.files, first.keys)


def test_each_package_contains_only_the_instructions_of_its_architecture(two: Path) -> None:
    for package in open_bundle(two).packages_of("aoti"):
        code, capability = instructions(two / package.path), package.environment.cpu
        assert ("%zmm" in code) == (capability == "AVX512")
        assert "%k1" not in code or capability == "AVX512"
        assert ("%ymm" in code) == (capability in {"AVX2", "AVX512"})


# ---- loading ----


def test_each_machine_loads_its_package(two: Path, lower: str) -> None:
    expected = Heads(0)(X)
    for capability, folder in ((lower, f"aoti-x86_64-{lower}"), (CAPABILITY, "aoti")):
        target, passed_over, paths, outputs, said = loaded_on(capability, two)
        assert (target, passed_over, said) == ("aoti", {}, [])
        assert paths
        assert all(path.startswith(f"{two}/{folder}/") for path in paths)
        torch.testing.assert_close(outputs, expected)


def test_a_machine_without_a_package_loads_the_next_target_and_says_why(one: Path, lower: str) -> None:
    target, passed_over, paths, outputs, said = loaded_on(lower, one)
    reason = f"the target aoti was built for a CPU with {HERE[7:].upper()}, but this one has {lower.upper()}"
    assert (target, passed_over, paths) == ("export", {"aoti": reason}, [])
    assert said == [f"{reason}; the target export is loaded instead of aoti"]
    torch.testing.assert_close(outputs, Heads(0)(X))


def test_without_a_package_the_target_is_refused_with_those_there_are_and_the_command(two: Path, lower: str) -> None:
    if lower == "default":
        pytest.skip("every machine has a package")
    code = "import sys, fuseconv\ntry:\n  fuseconv.load(sys.argv[1], target='aoti')\nexcept Exception as e:\n  print(e)"
    said = elsewhere("default", code, two)
    what = f"the target aoti has packages for {HERE}, x86_64-{lower}, but this machine is x86_64-default"
    assert said.splitlines()[0] == what
    assert said.splitlines()[2] == "  fix: run `fuseconv add BUNDLE` on this machine, or load another target"
    doctor = command_elsewhere("default", "doctor", two)
    findings = {finding["name"]: finding["found"] for finding in doctor["result"]["findings"]}
    assert doctor["ok"]
    assert (findings["aoti"], findings["export"]) == (what, "loads here (default)")


# ---- the other commands ----


def test_the_bundle_stays_as_it_is_where_it_has_a_package(two: Path, copy: Path, lower: str) -> None:
    done = fuseconv.add(copy)
    assert (done.architecture, done.architectures, done.report) == (HERE, (HERE, f"x86_64-{lower}"), None)
    record = command_elsewhere(lower, "add", copy)
    assert (record["ok"], record["result"]["added"]) == (True, False)
    assert hashes(copy) == hashes(two)


def test_verify_runs_the_package_of_its_machine(two: Path, one: Path, lower: str) -> None:
    assert fuseconv.verify(two).ok
    record = command_elsewhere(lower, "verify", two)
    assert record["ok"]
    assert {row["target"] for row in record["result"]["rows"]} == {"aoti", "export", "torchscript"}
    refused = command_elsewhere(lower, "verify", one)
    assert refused["error"]["hint"] == "run `fuseconv add BUNDLE` on this machine, or load another target"


def test_inspect_doctor_and_the_report_show_the_packages(
    two: Path, tmp_path: Path, lower: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert cli.main(["inspect", str(two)]) == 0
    assert f"packages of aoti   {HERE}, x86_64-{lower}\n" in capsys.readouterr().out
    assert cli.main(["doctor", str(two)]) == 0
    assert f"loads here (default), compiled for {HERE}" in capsys.readouterr().out
    assert cli.main(["report", str(two), "-o", str(tmp_path / "report.html")]) == 0
    assert f'"packages":{{"aoti":["{HERE}","x86_64-{lower}"]}}' in (tmp_path / "report.html").read_text()


def test_swapped_weights_reach_both_packages(two: Path, tmp_path: Path, lower: str) -> None:
    save_file(state(1), tmp_path / "new.safetensors")
    new = tmp_path / "new.fuseconv"
    assert cli.main(["swap", str(two), str(tmp_path / "new.safetensors"), "-o", str(new)]) == 0
    manifest, expected = open_bundle(new), Heads(1)(X)
    (package,) = manifest.packages
    assert package.parity != open_bundle(two).packages[0].parity
    assert hashes(new)[package.path] == hashes(two)[package.path]
    torch.testing.assert_close(load(new, "aoti")(X), expected)
    target, _, paths, outputs, _ = loaded_on(lower, new)
    assert target == "aoti"
    assert all(path.startswith(f"{new}/aoti-x86_64-{lower}/") for path in paths)
    torch.testing.assert_close(outputs, expected)


def test_a_package_whose_code_contains_an_old_weight_is_left_out_by_swap(two: Path, tmp_path: Path, lower: str) -> None:
    save_file({**state(1), "scale": torch.tensor(0.25)}, tmp_path / "new.safetensors")
    done = swap(two, tmp_path / "new.safetensors", output=tmp_path / "new.fuseconv")
    assert done.left_out == (f"x86_64-{lower}",)
    assert (open_bundle(done.bundle).packages, open_bundle(done.bundle).schema_version) == ([], 2)
    assert not list(done.bundle.glob("aoti-*"))


def test_new_weights_are_not_written_where_the_first_package_does_not_run(
    two: Path, tmp_path: Path, lower: str
) -> None:
    save_file(state(1), tmp_path / "new.safetensors")
    record = command_elsewhere(lower, "swap", two, tmp_path / "new.safetensors", "-o", tmp_path / "new.fuseconv")
    assert "new weights cannot be verified here: the target aoti was built for a CPU" in record["error"]["message"]
    assert not (tmp_path / "new.fuseconv").exists()


def test_the_bundle_can_be_signed_and_served_by_triton(
    one: Path, two: Path, copy: Path, tmp_path: Path, lower: str
) -> None:
    private, key, public = ec.generate_private_key(ec.SECP256R1()), tmp_path / "key.pem", tmp_path / "key.pub"
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    key.write_bytes(private.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    public.write_bytes(private.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    assert cli.main(["sign", str(copy), "--key", str(key)]) == 0
    assert cli.main(["verify", str(copy), "--signer", str(public)]) == 0
    assert cli.main(["triton", str(two), "-o", str(tmp_path / "repository"), "--name", "heads"]) == 0
    assert hashes(next((tmp_path / "repository/heads/1").glob("*/manifest.json")).parent) == hashes(two)
    signed = Path(shutil.copytree(one, tmp_path / "signed.fuseconv"))
    assert cli.main(["sign", str(signed), "--key", str(key)]) == 0
    assert command_elsewhere(lower, "add", signed)["result"]["signature"] == "removed"
    assert not (signed / SIGNATURE).exists()


def state(seed: int) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in Heads(seed).state_dict().items()}


# ---- what cannot be added ----


def without_aoti(bundle: Path) -> None:
    manifest = open_bundle(bundle)
    shutil.rmtree(bundle / "aoti")
    seal(bundle, manifest.model_copy(update={"targets": {"export": manifest.targets["export"]}}))


def without_export(bundle: Path) -> None:
    manifest = open_bundle(bundle)
    shutil.rmtree(bundle / "export")
    seal(bundle, manifest.model_copy(update={"targets": {"aoti": manifest.targets["aoti"]}}))


def of_another_program(bundle: Path) -> None:
    """As in a bundle that an older fuseconv has written, where a rule has made a weight a number."""
    without_export(bundle)
    path = bundle / "aoti/weights.json"
    path.write_text(path.read_text().replace('"program": "', '"program": "0'))
    seal(bundle, read_manifest(bundle))


def without_original(bundle: Path) -> None:
    manifest = open_bundle(bundle)
    shutil.rmtree(bundle / "original")
    seal(bundle, manifest)


def self_contained(bundle: Path) -> None:
    manifest = open_bundle(bundle)
    (bundle / "aoti/weights.json").unlink()
    seal(bundle, manifest)


def of_another_machine(bundle: Path) -> None:
    change(bundle, environment=open_bundle(bundle).environment.model_copy(update={"machine": "sparc"}))


def of_a_rule_pack(bundle: Path) -> None:
    manifest = open_bundle(bundle)
    shutil.copy(bundle / manifest.libraries[0], bundle / "lib/libpack.so")
    seal(bundle, manifest.model_copy(update={"libraries": [*manifest.libraries, "lib/libpack.so"]}))


@pytest.mark.parametrize(
    ("damage", "kind", "words"),
    [
        (without_aoti, UsageError, "the bundle has no target aoti"),
        (
            of_another_program,
            UnsupportedError,
            "it depends on the value of a weight that the bundle",
        ),
        (without_original, UnsupportedError, "does not contain the original program"),
        (self_contained, UnsupportedError, "its artifact contains the weights"),
        (of_a_rule_pack, UnsupportedError, "the bundle calls ops of a rule pack .*, whose Python files it does not"),
        (of_another_machine, UnsupportedError, "the op libraries of the bundle were built for a sparc machine"),
    ],
)
def test_what_cannot_be_added_is_said_and_the_bundle_stays(
    damage: Callable[[Path], None], kind: type[FuseconvError], words: str, foreign: Path
) -> None:
    damage(foreign)
    before = hashes(foreign)
    with pytest.raises(kind, match=words):
        fuseconv.add(foreign)
    assert hashes(foreign) == before
    assert [path.name for path in foreign.parent.iterdir()] == [foreign.name]


def test_a_program_with_a_number_that_was_a_weight_is_made_without_the_export(foreign: Path) -> None:
    without_export(foreign)
    before = Table.of(foreign / "aoti/model.pt2")
    assert fuseconv.add(foreign).report is not None
    added = Table.of(foreign / f"aoti-{HERE}/model.pt2")
    assert (before, set(hashes(foreign)) & {f"aoti-{HERE}/{WEIGHTS}"}) == (added, set())
    torch.testing.assert_close(load(foreign, "aoti")(X), Heads(0)(X))


def test_a_package_that_computes_something_else_does_not_stay(foreign: Path) -> None:
    tensors = load_file(foreign / REFERENCE)
    for name in [name for name in tensors if "/original/" in name or "/truth/" in name]:
        tensors[name] = tensors[name] + 1
    from safetensors import safe_open

    with safe_open(foreign / REFERENCE, "pt") as file:
        metadata = file.metadata()
    manifest = open_bundle(foreign)
    save_file(tensors, foreign / REFERENCE, metadata)
    seal(foreign, manifest)
    before = hashes(foreign)
    with pytest.raises(ParityError, match=f"of the package for {HERE} differs in case"):
        fuseconv.add(foreign)
    assert hashes(foreign) == before


def test_a_bundle_that_another_process_replaces_meanwhile_is_not_overwritten(foreign: Path) -> None:
    replaced: list[bytes] = []

    def progress(step: str) -> nullcontext[None]:
        if step == "verify":
            change(foreign, mismatch=True)
            replaced.append((foreign / MANIFEST).read_bytes())
        return nullcontext()

    with pytest.raises(FileError, match="another process has changed the bundle in the meantime"):
        fuseconv.add(foreign, progress=progress)
    assert replaced == [(foreign / MANIFEST).read_bytes()]
    assert not list(foreign.glob("aoti-*"))

"""A bundle detects any damage to itself and names the file."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fuseconv import cli
from fuseconv.bundle.files import MANIFEST
from fuseconv.bundle.manifest import LeftOut, Limit, Manifest, check_replaceable, open_bundle, seal
from fuseconv.contract.spec import Contract
from fuseconv.errors import RefusedError, UsageError
from fuseconv.parity.reference import REFERENCE, write_reference
from fuseconv.parity.verification import verify

FILES = (
    "aoti/model.pt2",
    "aoti/weights.json",
    "export/model.pt2",
    "export/weights.json",
    "lib/libfuseconv_cpu.so",
    "lib/libfuseconv_ort_cpu.so",
    "model.onnx",
    "model.plugin.onnx",
    "plan.json",
    "reference.safetensors",
    "torchscript/model.pt",
    "torchscript/weights.json",
    "weights.safetensors",
)


def test_a_bundle_names_all_its_files(bundle: Path) -> None:
    manifest = open_bundle(bundle)
    unpacked = [name for name in manifest.files if name.startswith("aoti/") and name.count("/") > 1]
    assert any(name.endswith(".so") for name in unpacked)
    assert tuple(name for name in manifest.files if name not in unpacked) == FILES
    assert manifest.targets.keys() == {"aoti", "export", "onnx", "onnx-plugin", "torchscript"}
    assert manifest.contract.outputs == ("output_0", "output_1", "output_2", "output_3")
    assert isinstance(manifest.contract, Contract)
    assert not manifest.mismatch
    assert len(manifest.parity) == 5 * 11 * 4  # targets, cases, outputs


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
@pytest.mark.parametrize("place", [0.0, 0.31, 0.5, 0.77, 1.0])
def test_one_flipped_bit_is_found(name: str, place: float, bundle_copy: Path) -> None:
    path = bundle_copy / name
    flip(path, round(place * (path.stat().st_size - 1)), bit=random.Random(name).randrange(8))
    with pytest.raises(RefusedError, match=name) as caught:
        open_bundle(bundle_copy)
    assert str(path) in caught.value.where
    assert caught.value.exit_status == 3


def test_verify_refuses_before_it_loads_anything(bundle_copy: Path) -> None:
    flip(bundle_copy / "aoti/model.pt2", 1000)
    with pytest.raises(RefusedError, match=r"aoti/model\.pt2"):
        verify(bundle_copy)


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
def test_a_truncated_file_is_found(name: str, keep: float, bundle_copy: Path) -> None:
    path = bundle_copy / name
    data = path.read_bytes()
    path.write_bytes(data[: round(keep * (len(data) - 1))])
    with pytest.raises(RefusedError, match=name):
        open_bundle(bundle_copy)


def test_any_bit_of_the_manifest_is_guarded(bundle: Path) -> None:
    data = (bundle / MANIFEST).read_bytes()
    assert Manifest.read(data).render() == data
    generator = random.Random(0)
    for position in generator.sample(range(len(data)), 200):
        damaged = bytearray(data)
        damaged[position] ^= 1 << generator.randrange(8)
        with pytest.raises(ValueError):  # noqa: PT011  # the reason depends on the bit
            Manifest.read(bytes(damaged))


def swap(bundle: Path) -> str:
    first, second, aside = bundle / "torchscript/model.pt", bundle / "export/model.pt2", bundle / "aside"
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    return "export/model.pt2"


def swap_between_bundles(bundle: Path) -> str:
    (bundle / "plan.json").write_text('{"steps": []}\n')
    return "plan.json"


def add(bundle: Path) -> str:
    (bundle / "lib" / "extra.so").write_bytes(b"")
    return "lib/extra.so"


def add_hidden(bundle: Path) -> str:
    (bundle / ".extra").write_bytes(b"x")
    return ".extra"


def add_folder(bundle: Path) -> str:
    (bundle / "lib" / "empty").mkdir()
    return "empty"


def remove(bundle: Path) -> str:
    (bundle / "weights.safetensors").unlink()
    return "weights.safetensors"


def remove_target(bundle: Path) -> str:
    shutil.rmtree(bundle / "export")
    return "export/model.pt2"


def link(bundle: Path) -> str:
    (bundle / "plan.json").rename(bundle.parent / "plan.json")
    (bundle / "plan.json").symlink_to(bundle.parent / "plan.json")
    return "plan.json"


def link_folder(bundle: Path) -> str:
    (bundle / "lib").rename(bundle.parent / "lib")
    (bundle / "lib").symlink_to(bundle.parent / "lib")
    return "lib"


def link_manifest(bundle: Path) -> str:
    (bundle / MANIFEST).rename(bundle.parent / MANIFEST)
    (bundle / MANIFEST).symlink_to(bundle.parent / MANIFEST)
    return MANIFEST


def remove_manifest(bundle: Path) -> str:
    (bundle / MANIFEST).unlink()
    return MANIFEST


def edit(bundle: Path) -> str:
    path = bundle / MANIFEST
    path.write_text(path.read_text().replace('"mismatch": false', '"mismatch": true'))
    return MANIFEST


def respell(bundle: Path) -> str:
    path = bundle / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text())))
    return MANIFEST


def nest(bundle: Path) -> str:
    (bundle / MANIFEST).write_text("[" * 100000)
    return MANIFEST


def not_text(bundle: Path) -> str:
    (bundle / MANIFEST).write_bytes(b"\xff\xfe\x00")
    return MANIFEST


@pytest.mark.parametrize(
    "damage",
    [
        swap,
        swap_between_bundles,
        add,
        add_hidden,
        add_folder,
        remove,
        remove_target,
        link,
        link_folder,
        link_manifest,
        remove_manifest,
        edit,
        respell,
        nest,
        not_text,
    ],
)
def test_other_damage_is_found(damage: Callable[[Path], str], bundle_copy: Path) -> None:
    name = damage(bundle_copy)
    with pytest.raises(RefusedError, match=name):
        open_bundle(bundle_copy)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"schema_version": 3}, "schema_version"),
        ({"extra": 1}, "extra"),
        ({"contract": {"inputs": 3}}, "contract"),
        ({"mismatch": "no"}, "mismatch"),
        ({"targets": None}, "targets"),
    ],
)
def test_a_manifest_of_another_form_is_refused_by_field(
    change: dict[str, object], field: str, bundle_copy: Path
) -> None:
    path = bundle_copy / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RefusedError, match=field):
        open_bundle(bundle_copy)


def test_an_artifact_that_is_no_file_of_the_bundle_is_refused(bundle_copy: Path) -> None:
    manifest = open_bundle(bundle_copy)
    seal(bundle_copy, manifest.model_copy(update={"libraries": ["../lib/libfuseconv_cpu.so"]}))
    with pytest.raises(RefusedError, match=r"\.\./lib"):
        open_bundle(bundle_copy)


def test_a_bundle_without_targets_is_refused_and_proves_nothing(bundle_copy: Path) -> None:
    manifest = open_bundle(bundle_copy)
    seal(bundle_copy, manifest.model_copy(update={"targets": {}}))
    for command in (["verify"], ["verify", "--all-runtimes"], ["doctor"], ["bench"]):
        assert cli.main([*command, str(bundle_copy)]) == 3


def test_a_bundle_whose_reference_has_no_case_is_refused(bundle_copy: Path) -> None:
    manifest = open_bundle(bundle_copy)
    write_reference(bundle_copy / REFERENCE, [], manifest.contract)
    seal(bundle_copy, manifest)
    for command in (["verify"], ["verify", "--all-runtimes"]):
        assert cli.main([*command, str(bundle_copy)]) == 3


def test_what_left_a_bundle_stands_in_its_manifest(bundle_copy: Path) -> None:
    left, limit = (
        LeftOut(target="aoti", cause="parity", reason="r"),
        Limit(target="onnx", case="c", output="o", reason="r"),
    )
    manifest = open_bundle(bundle_copy)
    assert b"left_out" not in manifest.render()
    assert b"limits" not in manifest.render()
    seal(bundle_copy, manifest.model_copy(update={"left_out": [left], "limits": [limit]}))
    again = open_bundle(bundle_copy)
    assert (again.left_out, again.limits) == ([left], [limit])


@pytest.mark.parametrize("name", ["none.fuseconv", "file.fuseconv"])
def test_what_is_no_folder_is_a_usage_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "file.fuseconv").write_text("x")
    with pytest.raises(UsageError):
        open_bundle(tmp_path / name)


def test_only_a_bundle_or_an_empty_folder_is_replaced(bundle_copy: Path, tmp_path: Path) -> None:
    check_replaceable(bundle_copy)
    flip(bundle_copy / MANIFEST, 5000)
    check_replaceable(bundle_copy)
    (tmp_path / "empty").mkdir()
    check_replaceable(tmp_path / "empty")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / MANIFEST).write_text('{"name": "my extension"}')
    (tmp_path / "link").symlink_to(bundle_copy)
    (tmp_path / "file").write_text("x")
    for name in ("mine", "link", "file"):
        with pytest.raises(UsageError, match="not a bundle"):
            check_replaceable(tmp_path / name)

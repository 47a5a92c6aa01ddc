"""Rule packs: their ops run if trusted, once, and their libraries are put in the bundle."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ROOT
from support.shared import made_once
from torch import Tensor, nn

from fuseconv.bundle.manifest import open_bundle
from fuseconv.errors import RefusedError, RuleError, UnsupportedError, UsageError
from fuseconv.pipeline.convert import convert
from fuseconv.pipeline.match import match
from fuseconv.proof.confined import check_rules
from fuseconv.rulebook import packs
from fuseconv.rulebook.rule_file import load_rules
from fuseconv.runtime.model import load
from fuseconv.sources import Options

PACK = ROOT / "samples" / "03_write_a_rule" / "blend_pack"
TRUSTED = Options(trust=frozenset({"code"}))


class Blend(nn.Module):
    def forward(self, old: Tensor, new: Tensor, weight: Tensor) -> Tensor:
        return torch.relu(old + weight * (new - old))


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample's pack, built; its op is registered once in this process."""

    def build(folder: Path) -> None:
        shutil.copytree(PACK, folder / "blend_pack")
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        subprocess.run(["sh", str(folder / "blend_pack" / "build.sh")], check=True, env={"PATH": path})

    return made_once(tmp_path_factory, "built_pack", build) / "blend_pack"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "blend.pt2"
    torch.export.save(torch.export.export(Blend(), tuple(torch.randn(3, 8) for _ in range(3))), path)
    return path


def test_code_runs_only_where_it_is_trusted(pack: Path, model: Path, tmp_path: Path) -> None:
    for run in (
        lambda: convert(model, rules=pack, target=["export"], output=tmp_path / "out"),
        lambda: match(model, rules=pack, options=Options(trust=frozenset({"native"}))),
        lambda: check_rules(pack),
    ):
        with pytest.raises(RefusedError, match=r"ops\.py must run to register") as caught:
            run()
        assert "--trust code" in caught.value.fix
    assert not (tmp_path / "out").exists()


def test_a_bundle_carries_the_library_of_the_pack(pack: Path, model: Path, tmp_path: Path) -> None:
    done = convert(model, rules=pack, target=["export"], output=tmp_path / "blend.fuseconv", options=TRUSTED)
    assert done.plan.counts() == {"lerp-relu": 1}
    assert open_bundle(done.bundle).libraries == ["lib/libfuseconv_cpu.so", "lib/libblend.so"]
    inputs = tuple(torch.randn(3, 8) for _ in range(3))
    torch.testing.assert_close(load(done.bundle)(*inputs), Blend()(*inputs))
    code = (
        "import sys, torch, fuseconv; model = fuseconv.load(sys.argv[1]); x = torch.ones(3, 8);"
        "assert torch.equal(model(x, 3 * x, x / 2), 2 * x)"
    )
    moved = done.bundle.rename(tmp_path / "moved.fuseconv")
    subprocess.run([sys.executable, "-c", code, str(moved)], check=True, cwd=ROOT)


def test_every_check_of_the_pack_passes(pack: Path) -> None:
    rows = check_rules(pack, trust={"code"})
    assert [row for row in rows if not row.ok] == []


def test_a_library_is_loaded_once_whatever_its_path(pack: Path, tmp_path: Path) -> None:
    (library,) = packs.load_ops(packs.op_files(load_rules(pack)), {"code"})
    assert library == pack / "libblend.so"
    packs.load_library(Path(shutil.copy(library, tmp_path)))
    (tmp_path / "other").mkdir()
    other = Path(shutil.copy(library, tmp_path / "other"))
    other.write_bytes(other.read_bytes() + b"x")
    with pytest.raises(UnsupportedError, match=r"another libblend\.so is already loaded"):
        packs.load_library(other)


def test_two_libraries_of_one_name_are_refused(pack: Path, tmp_path: Path) -> None:
    from fuseconv.pipeline.assembly import copy_libraries

    with pytest.raises(UsageError, match=r"two op libraries are named libblend\.so"):
        copy_libraries(tmp_path, "cpu", [pack / "libblend.so", pack / "libblend.so"])


def rule_file(folder: Path, ops: Any) -> Path:
    path = folder / "mine.json"
    path.write_text(json.dumps({"ops": ops, "rules": json.loads((PACK / "rules.json").read_text())["rules"]}))
    return path


@pytest.mark.parametrize("name", ["absent.py", "mine.json", ""])
def test_a_file_of_ops_that_is_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="no Python file") as caught:
        load_rules(rule_file(tmp_path, [name]))
    assert "(/ops/0)" in caught.value.where


def test_a_file_of_ops_that_fails(tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text("import torch\ntorch.ops.load_library('/nowhere/lib.so')\n")
    with pytest.raises(RuleError, match=r"ops\.py cannot be run: OSError: .*nowhere"):
        check_rules(rule_file(tmp_path, ["ops.py"]), trust={"code"})

"""`fuseconv add` and `swap` of bundles with several methods, and with ops of a rule pack, for another machine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import ROOT
from support.machines import command_elsewhere, elsewhere, fewer_instructions, hashes

from fuseconv.bundle.files import WEIGHTS
from fuseconv.bundle.manifest import open_bundle
from fuseconv.pipeline.convert import convert
from fuseconv.pipeline.swap import swap
from fuseconv.runtime.environment import environment
from fuseconv.sources import Options
from fuseconv.weights.table import TABLE

pytestmark = [pytest.mark.compiles, pytest.mark.timeout(600)]

HERE = environment("cpu").architecture
CAPABILITY = torch.backends.cpu.get_cpu_capability().lower()


@pytest.fixture(scope="module")
def lower() -> str:
    return fewer_instructions()


def test_every_method_of_a_bundle_gets_a_package(compiled_folder: Path, tmp_path: Path, lower: str) -> None:
    bundle = Path(shutil.copytree(compiled_folder / "llama.fuseconv", tmp_path / "llama.fuseconv"))
    before = hashes(bundle)
    record = command_elsewhere(lower, "add", bundle)
    assert record["ok"], record
    assert set(record["result"]["targets"]) == {"prefill/aoti", "decode/aoti"}
    assert hashes(bundle)[WEIGHTS] == before[WEIGHTS]
    code = (
        "import sys, torch, fuseconv\nmodel = fuseconv.load(sys.argv[1])\n"
        "print(model.generate(input_ids=torch.tensor([[5, 9, 11]]), max_new_tokens=6, eos=[]).tolist())\n"
        "print({line.split('/methods/')[1].split('/')[1] for line in open('/proc/self/maps') if 'aotinductor' in line})"
    )
    tokens, folders = elsewhere(lower, code, bundle).splitlines()
    assert folders == str({f"aoti-x86_64-{lower}"})
    assert tokens == elsewhere(CAPABILITY, code, bundle).splitlines()[0]
    old = load_file(compiled_folder / "llama/model.safetensors")
    save_file({name: tensor.flip(0).contiguous() for name, tensor in old.items()}, tmp_path / "new.safetensors")
    new = swap(bundle, tmp_path / "new.safetensors", output=tmp_path / "new.fuseconv")
    assert (new.kept, new.left_out) == (("decode/aoti", "prefill/aoti"), ())
    for method in ("prefill", "decode"):
        folder = f"methods/{method}/aoti-x86_64-{lower}"
        assert hashes(new.bundle / folder) | {TABLE: ""} == hashes(bundle / folder) | {TABLE: ""}
        (package,) = open_bundle(new.bundle / f"methods/{method}").packages
        assert package.parity != open_bundle(bundle / f"methods/{method}").packages[0].parity
    others, folders = elsewhere(lower, code, new.bundle).splitlines()
    assert (folders, others) == (str({f"aoti-x86_64-{lower}"}), elsewhere(CAPABILITY, code, new.bundle).splitlines()[0])
    assert others != tokens
    # The package computes the three norms, whose weights were equal, with one constant.
    one = {**old, "model.norm.weight": 2 * old["model.norm.weight"]}
    save_file(one, tmp_path / "unequal.safetensors")
    unequal = swap(bundle, tmp_path / "unequal.safetensors", output=tmp_path / "unequal.fuseconv")
    for method in ("prefill", "decode"):
        assert not open_bundle(unequal.bundle / f"methods/{method}").packages


# ---- a bundle that calls ops of a rule pack ----


class Blend(torch.nn.Module):
    """What the sample's pack has an op for, behind a layer with weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, old: torch.Tensor, new: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        new = self.layer(new)
        return torch.relu(old + weight * (new - old))


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample's pack, built under another name, because an op is registered once in a process."""
    source, folder = ROOT / "samples/03_write_a_rule/blend_pack", tmp_path_factory.mktemp("pack") / "added_pack"
    folder.mkdir()
    for name in ("build.sh", "ops.py", "rules.json", "lerp_relu.cpp"):
        (folder / name).write_text((source / name).read_text().replace("blend", "added"))
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    subprocess.run(["sh", "build.sh"], cwd=folder, check=True, env={"PATH": path})
    return folder


@pytest.fixture(scope="module")
def packed(pack: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with the library of the pack."""
    folder = tmp_path_factory.mktemp("packed")
    torch.export.save(torch.export.export(Blend(), tuple(torch.randn(3, 8) for _ in range(3))), folder / "model.pt2")
    options = Options(trust=frozenset({"code"}))
    targets, output = ["aoti", "export"], folder / "packed.fuseconv"
    done = convert(folder / "model.pt2", rules=pack, target=targets, output=output, options=options)
    assert done.plan.counts() == {"lerp-relu": 1}
    return done.bundle


def test_a_bundle_with_ops_of_a_rule_pack_gets_a_package_and_new_weights(
    pack: Path, packed: Path, tmp_path: Path, lower: str
) -> None:
    bundle = Path(shutil.copytree(packed, tmp_path / "packed.fuseconv"))
    before, given = hashes(bundle), ("--rules", pack, "--trust", "code")
    other = Path(shutil.copytree(pack, tmp_path / "other_pack"))
    (other / "libadded.so").write_bytes((pack / "libadded.so").read_bytes() + b"x")
    for words, said, fix in (
        ((), "the bundle calls ops of a rule pack (lib/libadded.so)", "--rules"),
        (("--rules", pack), "the rules use custom ops, and ops.py must run", "--trust code"),
        (("--rules", ROOT / "samples/03_write_a_rule/addcmul.json"), "the rules do not load libadded.so", "--rules"),
        (("--rules", other, "--trust", "code"), "libadded.so is not the library of the bundle", "copy "),
    ):
        refused = command_elsewhere(lower, "add", bundle, *words)
        assert said in refused["error"]["message"]
        assert fix in refused["error"]["hint"]
    assert hashes(bundle) == before
    record = command_elsewhere(lower, "add", bundle, *given)
    assert record["ok"], record
    assert record["result"]["architectures"] == [HERE, f"x86_64-{lower}"]
    trained = Blend()
    with torch.no_grad():
        trained.layer.weight.mul_(-2)
    save_file(trained.state_dict(), tmp_path / "new.safetensors")
    weights, new = tmp_path / "new.safetensors", tmp_path / "new.fuseconv"
    assert "of a rule pack" in command_elsewhere(CAPABILITY, "swap", bundle, weights)["error"]["message"]
    record = command_elsewhere(CAPABILITY, "swap", bundle, weights, "-o", new, *given)
    assert record["ok"], record
    assert (record["result"]["kept"], record["result"]["left_out"]) == (["aoti", "export"], [])
    code = "import sys, torch, fuseconv\nmodel = fuseconv.load(sys.argv[1])\nx = torch.ones(3, 8)\n"
    expected = trained(torch.ones(3, 8), 3 * torch.ones(3, 8), torch.ones(3, 8) / 2)
    for capability in (lower, CAPABILITY):
        found = json.loads(elsewhere(capability, f"{code}print(model(x, 3 * x, x / 2).tolist())", new))
        torch.testing.assert_close(torch.tensor(found), expected)

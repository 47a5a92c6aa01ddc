"""A target is one module: everything that lists, selects or queries targets reads its SPEC."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fuseconv
from fuseconv.errors import UnsupportedError
from fuseconv.rulebook.rule import Rule
from fuseconv.targets import PREFERENCE, TARGETS, spec_of

PACKAGE = Path(fuseconv.__file__).parent

SIXTH = """
from pathlib import Path
from fuseconv.errors import UnsupportedError
from fuseconv.targets.exported import load, unsupported
from fuseconv.targets.spec import TargetSpec

SPEC = TargetSpec("sixth", Path("sixth", "model"), preference=0, cuda_graphs=True, python_only="it is a test")

def check_machine(device):
    raise UnsupportedError("no sixth here", fix="install one")

def write(program, folder, context):
    (folder / SPEC.artifact).parent.mkdir()
    (folder / SPEC.artifact).write_text("")
    return SPEC.artifact
"""

ASKED = """
from fuseconv.commands import convert, demo, run
from fuseconv.doctor.abilities import abilities
from fuseconv.parity.matrix import ROWS
from fuseconv.pipeline.assembly import target_names
from fuseconv.runtime.cuda_graphs import CAPTURED
from fuseconv.targets import PREFERENCE

for command in (convert.convert, demo.demo, run.run):
    (option,) = (one for one in command.params if one.name == "target")
    assert "sixth" in option.help, option.help
can = {one.action: one.lacking for one in abilities() if (one.target, one.device) == ("sixth", "cpu")}
assert (can["convert"].what, can["python"], can["cpp"].what) == ("no sixth here", None, "it is a test"), can
assert [name for name, (target, _) in ROWS.items() if target == "sixth"] == ["sixth", "sixth+graph"]
assert PREFERENCE[0] == "sixth" and "sixth" in CAPTURED and "sixth" in target_names(())
"""


def test_a_sixth_target_is_a_module_and_its_name(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "fuseconv", ignore=shutil.ignore_patterns("lib", "__pycache__"))
    (tmp_path / "fuseconv" / "lib").symlink_to(PACKAGE / "lib")
    (tmp_path / "fuseconv" / "targets" / "sixth.py").write_text(SIXTH)
    package = tmp_path / "fuseconv" / "targets" / "__init__.py"
    text = package.read_text().replace("onnx_plugin, torchscript", "onnx_plugin, sixth, torchscript")
    package.write_text(text.replace("onnx, onnx_plugin)", "onnx, onnx_plugin, sixth)"))
    # An editable install finds the package by a hook of its own, before sys.path.
    hooks = "sys.meta_path = [one for one in sys.meta_path if isinstance(one, type)]"
    asked = f"import sys; {hooks}; sys.path.insert(0, {str(tmp_path)!r}){ASKED}"
    done = subprocess.run([sys.executable, "-c", asked], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_targets_are_listed_and_preferred_in_these_orders() -> None:
    assert list(TARGETS) == ["torchscript", "export", "aoti", "onnx", "onnx-plugin"]
    assert PREFERENCE == ("aoti", "export", "torchscript", "onnx-plugin", "onnx")


def test_the_runtime_in_cpp_prefers_the_same_targets_and_gives_the_same_to_onnx_runtime() -> None:
    source = "".join((PACKAGE.parent / f"csrc/runtime/{name}.cpp").read_text() for name in ("model", "packages"))
    ((preferred,), (onnx,)) = (re.findall(one, source) for one in (r"kPreference = {(.*)};", r"bool is_onnx.*{(.*)}"))
    loaded = [name for name in PREFERENCE if not TARGETS[name].SPEC.python_only]
    assert re.findall(r'"(.+?)"', preferred) == loaded
    assert set(re.findall(r'"(.+?)"', onnx)) == {name for name in loaded if spec_of(name).runtime == "onnxruntime"}


def test_a_rule_may_name_every_target() -> None:
    base = {"name": "r", "stage": "fuse", "doc": "d", "match": ["y = aten.relu.default(x)"], "replace": ["y = x"]}
    assert Rule.model_validate({**base, "targets": list(TARGETS)}).targets == list(TARGETS)


def test_a_target_of_a_newer_version_is_unknown() -> None:
    with pytest.raises(UnsupportedError, match="unknown target sixth"):
        spec_of("sixth")


def test_the_targets_are_read_without_torch() -> None:
    asked = "import sys, fuseconv.targets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked]).returncode == 0

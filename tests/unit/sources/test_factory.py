"""The Python file of `--model`: what its import may do, and what is said if it fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fuseconv.errors import UsageError
from fuseconv.sources.state_dict import build

CONFIGURED = """
from __future__ import annotations
import dataclasses, torch

@dataclasses.dataclass
class Config:
    size: int = 2
    scale: dataclasses.InitVar[int] = 1

class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(Config().size, 3)
"""


def test_a_file_may_define_dataclasses_and_save_its_model(tmp_path: Path) -> None:
    """As scripts do that have no `if __name__ == "__main__"`."""
    (tmp_path / "net.py").write_text(f"{CONFIGURED}\ntorch.save(Net(), {str(tmp_path / 'net.pt')!r})\n")
    for _ in range(2):
        (tmp_path / "net.pt").unlink(missing_ok=True)
        assert type(build(f"{tmp_path}/net.py:Net")).__name__ == "Net"
        assert (tmp_path / "net.pt").stat().st_size


LATE = """
from __future__ import annotations
import dataclasses, pickle, torch

class Net(torch.nn.Linear): ...

def build():
    @dataclasses.dataclass
    class Config:
        size: int = 2
        scale: dataclasses.InitVar[int] = 1
    return pickle.loads(pickle.dumps(Net(Config().size, 3)))
"""


def test_a_factory_may_define_dataclasses_and_copy_its_model(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    before = set(sys.modules)
    assert type(build(f"{tmp_path}/late.py:build")).__name__ == "Net"
    assert "late" not in set(sys.modules) - before


def test_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    for size in (3, 4):
        (tmp_path / str(size)).mkdir()
        (tmp_path / str(size) / "net.py").write_text(f"import torch\ndef build(): return torch.nn.Linear({size}, 1)\n")
        module = build(f"{tmp_path}/{size}/net.py:build")
        assert module.in_features == size


@pytest.mark.parametrize(
    ("code", "what", "fix"),
    [
        ("raise ValueError('no data')", "net.py cannot be imported: ValueError: no data", "under `if __name__"),
        ("import absent_package", "net.py cannot be imported: ModuleNotFoundError: No module", "under `if __name__"),
        ("def build(size): ...", "build does not build a model: TypeError", "takes no arguments"),
        ("", "build does not build a model: AttributeError", "takes no arguments"),
        ("def build(): ...", "build returned an object of type NoneType", "return a torch.nn.Module"),
    ],
)
def test_what_fails_is_named(code: str, what: str, fix: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(code)
    with pytest.raises(UsageError) as caught:
        build(f"{tmp_path}/net.py:build")
    assert what in caught.value.what
    assert fix in caught.value.fix

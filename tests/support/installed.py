"""Tries a wheel as a user has it: installed in a new environment, outside of the repository.

    python3.12 tests/support/installed.py dist/fuseconv-*.whl [--extra cpu] [--torch torch==2.10.*]

The Python that runs this script is the one that the wheel is tried with; it needs nothing installed. `make wheel` and
the workflows call it. It prints each command with the seconds that it took, and ends with the first that fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

MODEL = """
import torch

class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return torch.nn.functional.gelu(self.linear(x))

torch.manual_seed(0)
batch = torch.export.Dim("batch", min=1, max=16)
torch.export.save(torch.export.export(Gate().eval(), (torch.randn(3, 8),), dynamic_shapes=({0: batch},)), "gate.pt2")
"""

CALL = """
import sys, torch, fuseconv
assert sys.argv[1] in fuseconv.__file__, fuseconv.__file__
model, original = fuseconv.load("gate.fuseconv"), torch.export.load("gate.pt2").module()
for rows in (1, 5, 16):
    x = torch.randn(rows, 8)
    y = model(x)
    torch.testing.assert_close(y, original(x))
print("fuseconv", fuseconv.__version__, "with torch", torch.__version__, "on Python", sys.version.split()[0])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--extra", default="cpu", help="what to install of the wheel's extras (default: cpu)")
    parser.add_argument("--torch", help="another torch than that of constraints.txt, such as torch==2.10.*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="installed") as name:
        try_wheel(options.wheel.resolve(), options.extra, options.torch, Path(name).resolve())


def try_wheel(wheel: Path, extra: str, other_torch: str | None, folder: Path) -> None:
    venv.create(folder / "venv", with_pip=True)
    python, command = folder / "venv/bin/python", folder / "venv/bin/fuseconv"
    versions = (ROOT / "constraints.txt").read_text().splitlines()
    if other_torch:
        versions = [line for line in versions if not line.startswith("torch==")] + [other_torch]
    (folder / "constraints.txt").write_text("\n".join(versions) + "\n")

    run(folder, python, "-m", "pip", "install", "--quiet", "-c", "constraints.txt", f"{wheel}[{extra}]")
    run(folder, command, "--version")
    findings = json.loads(run(folder, command, "doctor", "--json"))["result"]["findings"]
    library = next(finding for finding in findings if finding["name"] == "op library, cpu")
    assert library["ok"], library
    run(folder, python, "-c", MODEL)
    converted = json.loads(run(folder, command, "convert", "gate.pt2", "-o", "gate.fuseconv", "--json"))
    assert converted["ok"], converted
    rules = json.dumps(converted["result"])
    assert "linear-act" in rules, "no rule that comes with fuseconv was applied: are rules/*.json in the wheel?"
    run(folder, command, "verify", "gate.fuseconv")
    run(folder, command, "report", "gate.fuseconv", "-o", "report.html")
    print(run(folder, python, "-c", CALL, str(folder)).strip())


def run(folder: Path, *command: str | Path) -> str:
    """Runs a command in the folder, without what leads back to the repository; returns what it prints."""
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    begun = time.perf_counter()
    done = subprocess.run([str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True)
    shown = " ".join(word if len(word) < 60 else "..." for word in map(str, command)).replace(f"{folder}/", "")
    print(f"{time.perf_counter() - begun:6.1f} s  {shown}", flush=True)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\nexit status {done.returncode}: {shown}")
    return done.stdout


if __name__ == "__main__":
    main()

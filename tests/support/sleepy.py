"""A model, and a pack of rules for it: the op of one rule sleeps, the other rule makes one pass of many."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from support import ROOT

PACK = ROOT / "samples" / "03_write_a_rule" / "blend_pack"

PASSES = 30
"""So many that one pass in their place is faster on a busy machine too."""

GOOD = {
    "name": "abs-chain",
    "stage": "fuse",
    "doc": "Many passes as one.",
    "match": [f"x{at + 1} = aten.abs.default(x{at})" for at in range(PASSES)],
    "replace": [f"x{PASSES} = aten.abs.default(x0)"],
}


class Model(nn.Module):
    def forward(self, old: Tensor, new: Tensor, weight: Tensor) -> Tensor:
        for _ in range(PASSES):
            new = torch.abs(new)
        return torch.relu(old + weight * (new - old))


def write_pack(pack: Path) -> None:
    """Writes a folder with a `rules.json` of the rules `lerp-relu`, which sleeps for 20 ms, and `abs-chain`."""
    pack.mkdir()
    for name in ("build.sh", "ops.py", "rules.json", "lerp_relu.cpp"):
        (pack / name).write_text((PACK / name).read_text().replace("blend", "sleepy"))
    code = pack / "lerp_relu.cpp"
    slow = "std::this_thread::sleep_for(std::chrono::milliseconds(20));\n  Tensor result ="
    code.write_text("#include <chrono>\n#include <thread>\n" + code.read_text().replace("Tensor result =", slow))
    subprocess.run(
        ["sh", "build.sh"], cwd=pack, check=True, env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    )
    rules = json.loads((pack / "rules.json").read_text())
    (pack / "rules.json").write_text(json.dumps({**rules, "rules": [*rules["rules"], GOOD]}))


def write_model(path: Path) -> None:
    """Writes the model to which both rules apply."""
    examples = tuple(torch.randn(1024, 256) for _ in range(3))
    torch.export.save(torch.export.export(Model(), examples), path)

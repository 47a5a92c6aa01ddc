"""Proves on a GPU what CI, which has none, cannot: the ops' tests on CUDA, and conversions with --device cuda.

    python bench/gpu_acceptance.py OUT [MODEL:DTYPE ...]

writes OUT/acceptance.json, {"device", "versions", "rows": [{"name", "ok", "seconds", "detail"}]}; prints a line a row.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
CONVERT = (sys.executable, "-m", "fuseconv", "convert")


def models(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Saves small models with random weights and yields each one's name and arguments."""
    from transformers import BertConfig, BertModel, ViTConfig, ViTModel

    torch.manual_seed(0)
    perceptron = torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256), torch.nn.ReLU()
    )
    batch = torch.export.Dim("batch", min=1, max=4096)
    exported = torch.export.export(perceptron.eval(), (torch.randn(8, 256),), dynamic_shapes=({0: batch},))
    torch.export.save(exported, folder / "mlp.pt2")
    yield "mlp", [str(folder / "mlp.pt2")]
    for name, module in (
        ("bert", BertModel(BertConfig(num_hidden_layers=4))),
        ("vit", ViTModel(ViTConfig(num_hidden_layers=4))),
    ):
        module.save_pretrained(folder / name)
        yield name, [str(folder / name)]


def run(name: str, command: list[str]) -> dict[str, object]:
    """Runs a command; the row holds the end of what it printed."""
    start = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 - our own commands
    printed = (done.stdout + done.stderr).strip()
    row = {
        "name": name,
        "ok": done.returncode == 0,
        "seconds": round(time.monotonic() - start, 1),
        "detail": printed[-1500:],
    }
    print(f"{'ok  ' if row['ok'] else 'FAIL'} {row['seconds']:7.1f} s  {name}", flush=True)
    if not row["ok"]:
        print(printed[-3000:], flush=True)
    return row


def rows(selected: list[str]) -> Iterator[dict[str, object]]:
    """Yields a row for the ops' tests, then two a model and dtype: converted, and verified by another process."""
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:logging"]
    tests = [sys.executable, "-m", "pytest", *options, "tests/ops/test_ops.py"]
    yield run("ops on cuda", [*tests, "-k", "cuda"])
    targets = ["--target", "export", "--target", "aoti", "--target", "torchscript"]
    with tempfile.TemporaryDirectory() as work:
        for name, arguments in models(Path(work)):
            for dtype in ("f32", "f16", "bf16"):
                if selected and f"{name}:{dtype}" not in selected:
                    continue
                bundle = str(Path(work, f"{name}.{dtype}.fuseconv"))
                convert = [
                    *CONVERT,
                    *arguments,
                    "--device",
                    "cuda",
                    "--dtype",
                    dtype,
                    *targets,
                    "--tune",
                    "none",
                    "-o",
                    bundle,
                ]
                yield run(f"convert {name} {dtype} cuda", convert)
                yield run(f"verify {name} {dtype} cuda", [sys.executable, "-m", "fuseconv", "verify", bundle])


def main() -> int:
    """Runs everything, keeps what is done after every row, and returns 1 if a row failed."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": sys.version.split()[0]}
    done: list[dict[str, object]] = []
    for row in rows(sys.argv[2:]):
        done.append(row)
        record = {"device": torch.cuda.get_device_name(), "versions": versions, "rows": done}
        (out / "acceptance.json").write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(row["ok"] for row in done) else 1


if __name__ == "__main__":
    sys.exit(main())

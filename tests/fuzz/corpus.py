"""Valid files of every format that fuseconv reads, and how each is read."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from support import saved_models

from fuseconv.bundle.files import MANIFEST
from fuseconv.bundle.sealed_text import spell
from fuseconv.capture.capture import capture
from fuseconv.commands.convert import convert
from fuseconv.commands.settings import _check, read_settings
from fuseconv.contract.inputs import from_file
from fuseconv.matching.lock import read_lock
from fuseconv.matching.pattern import compile_rule
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.steps import read_plan
from fuseconv.rulebook.rule_file import load_rules, own_folder
from fuseconv.runtime.model import load
from fuseconv.sources import Options, read

Reader = Callable[[Path], object]


@dataclass(frozen=True)
class Seed:
    """A sound source.

    Attributes:
        form: what it is.
        files: relative name to content; one file is named `model`, or what its reader wants.
        read: reads the folder they are in.
        left: names of files that are not damaged.
    """

    form: str
    files: Mapping[str, bytes]
    read: Reader
    left: frozenset[str] = frozenset()


def corpus(folder: Path, groups: Collection[str]) -> list[Seed]:
    """Makes the seeds of some groups, with `folder` for what must be on disk meanwhile."""
    return [seed for name in groups for seed in GROUPS[name](folder)]


def _models(folder: Path) -> list[Seed]:
    seeds = []
    for model_class in (saved_models.Perceptron, saved_models.Convolution):
        for form, save_as in saved_models.SAVERS.items():
            path = folder / "model"
            save_as(saved_models.made(model_class), path)
            trusting = saved_models.options_for(model_class, form)
            for options, how in ((trusting, "trusted"), (_without_trust(trusting), "not trusted")):
                if how == "trusted" and form in ("pickle", "old pickle"):
                    continue  # a pickle that is trusted may do as it likes
                seeds.append(
                    Seed(
                        f"{form}, {how}",
                        {"model": path.read_bytes()},
                        _reader(options),
                    )
                )
    return seeds


def _reader(options: Options) -> Reader:
    return lambda place: read(place / "model", options=options)


def _without_trust(options: Options) -> Options:
    from dataclasses import replace

    keep = frozenset({"code"}) if options.model else frozenset()
    return replace(options, trust=keep)


def _inputs(_: Path) -> list[Seed]:
    tensors = {"x": torch.arange(12.0).reshape(3, 4), "ids": torch.tensor([[1, 2]])}
    npz, saved = io.BytesIO(), io.BytesIO()
    np.savez(npz, x=tensors["x"].numpy(), ids=tensors["ids"].numpy())
    torch.save(tensors, saved)
    made = {"inputs npz": npz.getvalue(), "inputs pt": saved.getvalue(), "inputs safetensors": save(tensors)}
    return [
        Seed(form, {"inputs.safetensors": data}, lambda place: from_file(place / "inputs.safetensors"))
        for form, data in made.items()
    ]


def _rules(_: Path) -> list[Seed]:
    def compiled(place: Path) -> object:
        return [compile_rule(rule) for rule in load_rules(place / "rules.json")]

    own = sorted(own_folder().rglob("*.json"))
    files = {
        path.name: path.read_bytes().replace(b'"../fragments.json"', b'"fragments.json"')
        for path in own
        if path.name not in ("schema.json", "default.json")
    }
    shared = {"fragments.json": files.pop("fragments.json")}
    included = json.dumps({"include": ["norm.json", "pad.json"]}).encode()
    seeds = [Seed("rules", {"rules.json": data, **shared}, compiled) for data in files.values() if len(data) < 60_000]
    several = {name: files[name] for name in ("norm.json", "pad.json")}
    return [*seeds, Seed("rules that include", {"rules.json": included, **several, **shared}, compiled)]


def _plans(folder: Path) -> list[Seed]:
    from fuseconv.matching.lock import count_matches, write_lock
    from fuseconv.matching.plan import plan

    path = folder / "model"
    saved_models.SAVERS["pt2"](saved_models.made(saved_models.Perceptron), path)
    program = capture(read(path))
    found = plan(program, load_rules("rules/default.json"), device="cpu", targets=("export",))
    write_lock(folder / "some.lock", "model.fuseconv", count_matches(found, program))
    lock = (folder / "some.lock").read_bytes()
    return [
        Seed(
            "plan",
            {"plan.json": found.to_json().encode()},
            lambda place: rewrite(program, read_plan(place / "plan.json")),
        ),
        Seed("lock", {"fuseconv.lock": lock}, lambda place: read_lock(place / "fuseconv.lock")),
    ]


_SETTINGS = b"""
[project]
name = "demo"

[tool.fuseconv]
rules = "rules/default.json"
target = ["export", "onnx"]
input = ["x=f32[n:1..4,8]"]
allow-mismatch = false
"""


def _settings(_: Path) -> list[Seed]:
    return [Seed("settings", {"pyproject.toml": _SETTINGS}, lambda place: _check(read_settings(place), convert))]


def _folders(folder: Path) -> list[Seed]:
    import transformers

    config = transformers.BertConfig(
        vocab_size=40, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    torch.manual_seed(0)
    place = folder / "bert"
    transformers.BertModel(config).save_pretrained(place)
    files = {path.name: path.read_bytes() for path in place.iterdir()}
    transformers.BertModel(config).save_pretrained(folder / "shards", max_shard_size="4KB")
    shards = {path.name: path.read_bytes() for path in (folder / "shards").iterdir()}
    return [
        Seed("hugging face", files, read),
        Seed("hugging face in shards", shards, read),
    ]


def _bundles(folder: Path) -> list[Seed]:
    from support import small_bundle

    original = small_bundle.program(small_bundle.Block(fused=False))
    fused = small_bundle.program(small_bundle.Block(fused=True))
    output, scratch = folder / "block.fuseconv", folder / "scratch"
    scratch.mkdir()
    small_bundle.write_bundle(original, fused, output, ["export", "torchscript", "onnx"], scratch=scratch)
    files = {path.relative_to(output).as_posix(): path.read_bytes() for path in output.rglob("*") if path.is_file()}
    example = original.examples

    def loaded(place: Path) -> object:
        return [load(place, target)(*example) for target in ("export", "torchscript", "onnx")]

    # Machine code whose checksum is right is run: nothing protects from what it does.
    code = frozenset(name for name in files if name.startswith("lib/"))
    return [Seed("bundle", files, loaded), Seed("bundle, sealed again", files, loaded, left=code)]


GROUPS: Mapping[str, Callable[[Path], list[Seed]]] = {
    "models": _models,
    "inputs": _inputs,
    "rules": _rules,
    "plans": _plans,
    "settings": _settings,
    "folders": _folders,
    "bundles": _bundles,
}
"""What is read, by name, to what makes the seeds."""


LARGEST = 1 << 26
"""The largest file, in bytes, that is hashed anew."""


def reseal(place: Path) -> None:
    """Hashes the files of a damaged bundle anew, as one would who means harm."""
    import hashlib

    manifest = place / MANIFEST
    paths = [path for path in sorted(place.rglob("*")) if path.is_file() and not path.is_symlink()]
    if manifest not in paths or any(path.stat().st_size > LARGEST for path in paths):
        return  # a device, a folder, or a file of many empty gigabytes
    try:
        value = json.loads(manifest.read_bytes())
        value["files"] = {
            path.relative_to(place).as_posix(): {
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                "size": path.stat().st_size,
            }
            for path in paths
            if path != manifest
        }
        value.pop("manifest_sha256", None)
        value["manifest_sha256"] = hashlib.sha256(spell(value)).hexdigest()
        manifest.write_bytes(spell(value))
    except (ValueError, TypeError, OSError, AttributeError, RecursionError):
        return  # it is no longer a manifest

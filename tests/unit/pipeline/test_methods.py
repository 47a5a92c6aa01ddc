"""Several methods of one module in one bundle: one file of weights, and every tool knows the methods."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from support.autoencoder import Autoencoder, convert, save

import fuseconv
from fuseconv import cli
from fuseconv.bundle.methods import method_folder, weights_folder
from fuseconv.errors import ContractError, RefusedError, UsageError
from fuseconv.pipeline.methods import MethodsConversion
from fuseconv.runtime.methods import Methods
from fuseconv.sources import Options
from fuseconv.sources.methods import method_of


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> MethodsConversion:
    return convert(tmp_path_factory.mktemp("methods"))


@pytest.fixture
def bundle(done: MethodsConversion, tmp_path: Path) -> Path:
    return shutil.copytree(done.bundle, tmp_path / "copy.fuseconv")


def loaded(bundle: Path, target: str | None = None) -> Methods:
    model = fuseconv.load(bundle, target=target)
    assert isinstance(model, Methods)
    return model


@pytest.mark.parametrize("target", ["export", "onnx"])
def test_methods_compute_what_those_of_the_module_compute(done: MethodsConversion, target: str) -> None:
    assert done.report.ok
    model, module, x = loaded(done.bundle, target), Autoencoder(), torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(model.encode(x), module.encode(x))
        torch.testing.assert_close(model.decode(z=model.encode(x)), module.decode(module.encode(x)))
    assert model.methods.keys() == {"encode", "decode"} <= set(dir(model))


def test_every_weight_is_stored_once(done: MethodsConversion) -> None:
    stores = [path.relative_to(done.bundle).as_posix() for path in done.bundle.rglob("weights.safetensors")]
    assert stores == ["weights.safetensors"]
    with safe_open(done.bundle / stores[0], "pt") as file:
        stored = [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118 - it is no mapping
    own = dict(Autoencoder().named_parameters())
    assert len(stored) == len(own) - 1  # two of them are zeros
    for name, tensor in own.items():
        assert sum(tensor.shape == one.shape and torch.equal(tensor, one) for one in stored) == 1, name


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda model: model.encode(torch.zeros(3, 9)), "size 9 at axis 1"),
        (lambda model: model.encode(torch.zeros(9, 8)), r"size 9 at axis 0, outside batch:1..8"),
        (lambda model: model.decode(x=torch.zeros(3, 16)), r"takes 1 inputs \(z\)"),
    ],
)
def test_each_method_checks_its_contract(
    done: MethodsConversion, call: Callable[[Methods], object], error: str
) -> None:
    with pytest.raises(ContractError, match=error):
        call(loaded(done.bundle))


def test_a_call_must_name_a_method(done: MethodsConversion) -> None:
    with pytest.raises(UsageError, match="has the methods encode, decode") as caught:
        fuseconv.load(done.bundle)(torch.zeros(1, 8))
    assert "model.encode(...)" in str(caught.value.fix)
    with pytest.raises(AttributeError, match="has no method forward: it has encode, decode"):
        loaded(done.bundle).forward(torch.zeros(1, 8))


def test_the_folder_of_a_method_is_a_bundle(done: MethodsConversion) -> None:
    folder = method_folder(done.bundle, "decode")
    assert weights_folder(folder) == done.bundle
    assert weights_folder(done.bundle) == done.bundle
    assert fuseconv.verify(folder).ok
    assert fuseconv.load(folder)(torch.zeros(2, 16)).shape == (2, 8)


def test_new_weights_are_given_to_all_methods(
    done: MethodsConversion, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained, x, z = Autoencoder(), torch.randn(3, 8), torch.randn(2, 16)
    with torch.no_grad():
        for place, parameter in enumerate(trained.parameters()):
            parameter.add_(0.1 * place)  # those that were the same differ now
        expected = trained.encode(x), trained.decode(z)
    model = loaded(done.bundle)
    words = ["swap", str(done.bundle), str(save(tmp_path, trained)), "-o", str(tmp_path / "new.fuseconv")]
    assert cli.main([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert result["kept"] == ["decode/export", "encode/export"]
    assert result["written"] == ["decode/onnx", "encode/onnx"]
    for new in (loaded(tmp_path / "new.fuseconv"), model):
        if new is model:
            model.swap(tmp_path / "new.fuseconv")
        torch.testing.assert_close((new.encode(x), new.decode(z)), expected)
    assert len(list((tmp_path / "new.fuseconv").rglob("weights.safetensors"))) == 1
    before = loaded(done.bundle)
    (tmp_path / "new.fuseconv/methods/decode/export/model.pt2").unlink()
    with pytest.raises(RefusedError, match=r"export/model\.pt2 is missing"):
        before.swap(tmp_path / "new.fuseconv")
    torch.testing.assert_close(before.encode(x), Autoencoder().encode(x))  # no method has the new weights


def test_a_bundle_without_the_methods_is_not_swapped(done: MethodsConversion) -> None:
    with pytest.raises(UsageError, match="does not have the methods encode, decode"):
        loaded(done.bundle).swap(method_folder(done.bundle, "encode"))


def damage_weights(bundle: Path) -> None:
    path = bundle / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")


def exchange_manifests(bundle: Path) -> None:
    shutil.copy(bundle / "methods/encode/manifest.json", bundle / "methods/decode/manifest.json")


def remove_a_method(bundle: Path) -> None:
    shutil.rmtree(bundle / "methods/decode")


def add_a_method(bundle: Path) -> None:
    shutil.copytree(bundle / "methods/decode", bundle / "methods/other")


def damage_a_plan(bundle: Path) -> None:
    (bundle / "methods/decode/plan.json").write_text("{}")


def edit_the_manifest(bundle: Path) -> None:
    path = bundle / "manifest.json"
    path.write_text(path.read_text().replace('"encode"', '"encod"'))


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (damage_weights, "weights.safetensors does not have the sha256"),
        (exchange_manifests, "methods/decode/manifest.json"),
        (remove_a_method, "methods/decode/manifest.json is missing"),
        (add_a_method, "methods/other/.* is not in the manifest"),
        (damage_a_plan, "plan.json has 2 bytes"),
        (edit_the_manifest, "it was modified after it was written"),
    ],
)
def test_a_damaged_bundle_is_refused(bundle: Path, damage: Callable[[Path], None], error: str) -> None:
    damage(bundle)
    with pytest.raises(RefusedError, match=error):
        fuseconv.load(bundle)


def test_damaged_weights_are_refused_for_one_method(bundle: Path) -> None:
    damage_weights(bundle)
    with pytest.raises(RefusedError, match=r"weights.safetensors does not have the sha256"):
        fuseconv.load(bundle / "methods/encode")


def test_the_commands_know_the_methods(
    done: MethodsConversion, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({"x": torch.ones(2, 8)}, tmp_path / "x.safetensors")
    run = ["run", str(done.bundle), "--method", "encode", "--inputs", str(tmp_path / "x.safetensors")]
    assert cli.main([*run, "-o", str(tmp_path / "y.npz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["outputs"] == {"output_0": [2, 16]}
    assert cli.main(["inspect", str(done.bundle)]) == 0
    assert re.search(r"encode +\(x=f32\[batch:1..8,8\]\) -> \(output_0\)", capsys.readouterr().out)
    assert cli.main(["verify", str(done.bundle), "--method", "decode", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["result"]["targets"]) == {"export", "onnx"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "{}", "--inputs", "{}/manifest.json", "-o", "y.npz"], "this needs one of them"),
        (["run", "{}", "--method", "x", "--inputs", "{}/manifest.json", "-o", "y.npz"], "has no method x"),
        (["bench", "{}", "--method", "x"], "use one of encode, decode"),
        (["convert", "{}/manifest.json", "--method", "Encode"], "'Encode' cannot be the name of a method"),
        (["convert", "{}/manifest.json", "--method", "a", "--method", "a=b"], "the method a is given twice"),
        (["convert", "{}/manifest.json", "--method", "a", "--input", "x=f32[8]"], "'a:x=f32[8]'"),
        (["convert", "{}/manifest.json", "--method", "a", "--bucket", "batch=1,8"], "the batch of a state"),
        (["convert", "{}/manifest.json", "--method", "a", "--plan", "{}/methods"], "no plan for the method a"),
        (["convert", "{}/manifest.json", "--method", "a", "--lock", "--frozen"], "--frozen must not change it"),
        (["tune", "{}"], "this needs one of them"),
    ],
)
def test_a_wrong_method_is_a_usage_error(
    done: MethodsConversion, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert cli.main([word.format(done.bundle) for word in words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("attribute", "said"), [("absent", "has no method absent"), ("size", "size is a int")])
def test_an_attribute_that_is_no_method_is_a_usage_error(attribute: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        method_of(Autoencoder(), attribute, tmp_path)
    assert "use one of encode, decode, up, shared, down" in str(caught.value.fix)


def test_a_source_without_methods_is_a_usage_error(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(8, 8), (torch.zeros(2, 8),))
    torch.export.save(program, tmp_path / "linear.pt2")
    with pytest.raises(UsageError, match="only method is forward"):
        fuseconv.convert_methods(tmp_path / "linear.pt2", {"encode": Options(method="encode")})

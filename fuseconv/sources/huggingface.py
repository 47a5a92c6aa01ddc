"""Reads Hugging Face folders, which contain config.json and .safetensors files.

Weights are read as data, and the model's class comes from the transformers library. Nothing is downloaded here; see
`untrusted.hub`. Code in the folder runs only with `--trust code`.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fuseconv.contract.dims import Dim
from fuseconv.contract.dtypes import SHORT_DTYPES
from fuseconv.contract.options import Options
from fuseconv.contract.spec import TensorSpec
from fuseconv.errors import RefusedError, UnsupportedError, UpstreamError, UsageError
from fuseconv.sources import generating
from fuseconv.sources.pickles import listed
from fuseconv.sources.subject import Loaded
from fuseconv.untrusted.files import check_plain, is_plain, read_plain

BATCH = Dim("batch", 1, 64)
LARGEST_SEQUENCE = 2048
"""The longest sequence in a derived contract. Longer sequences must be declared with `--input`."""

_AGAIN = "get the folder from its author again"
logger = logging.getLogger("fuseconv")


def load(path: Path, options: Options) -> Loaded:
    """Builds the model that config.json specifies, loads the safetensors, and derives the inputs from the config.

    Raises:
        RefusedError: the folder requires code that is not trusted, is damaged, or lacks weights.
        UnsupportedError: transformers is not installed or does not have the model class.
    """
    config = _config(path)
    model_class = _model_class(config, path, options)
    attention = str(config.get("attn_implementation", config.get("_attn_implementation", "")))
    if "/" in attention:
        options.require(
            "code", "the attention implementation from another repository", f"{path}/config.json", attention
        )
    if "quantization_config" in config:
        raise UnsupportedError(
            "the weights are quantized",
            where=f"{path}/config.json",
            fix="convert the model from before its quantization",
        )
    _screen_files(path)
    if not any(path.glob("*.safetensors")):
        others = listed(sorted(part.name for part in path.iterdir() if part.suffix in (".bin", ".h5", ".msgpack")))
        raise RefusedError(
            "the folder has no .safetensors file" + (f", but {others}" if others else ""),
            where=str(path),
            fix="load the model and save it with model.save_pretrained(folder); transformers 4 reads TensorFlow "
            "weights with from_tf=True, and Flax weights with from_flax=True",
        )
    module = _pretrained(model_class, path, options)
    specs = _inputs(module, options) if not options.inputs and options.inputs_file is None else ()
    return Loaded(module, specs, call=tuple(spec.name for spec in specs), by_keyword=True)


def _screen_files(path: Path) -> None:
    """Checks the files that transformers will open: all are regular files, and indexes name only files in this folder.

    Symbolic links are followed, because Hugging Face's download cache uses them.

    Raises:
        RefusedError: an index lists a file in another folder or a file that is not .safetensors, or a file is not a
            regular file.
    """
    for part in sorted(path.iterdir()):
        if part.suffix not in (".json", ".safetensors"):
            continue
        try:
            data = read_plain(part) if part.name.endswith(".index.json") else b""
            check_plain(part)
        except OSError as error:
            raise RefusedError(f"{part.name} cannot be read: {error.strerror}", where=str(part), fix=_AGAIN) from error
        for shard in _shards(data, part) if data else ():
            if Path(shard).name != shard or not shard.endswith(".safetensors"):
                what = f"the index names {shard!r}, which is not a .safetensors file in the same folder"
                raise RefusedError(what, where=str(part), fix=_AGAIN)
            if not is_plain(path / shard):
                raise RefusedError(f"the index names {shard}, but this file is missing", where=str(part), fix=_AGAIN)


def _shards(data: bytes, index: Path) -> list[str]:
    try:
        shards = set(json.loads(data)["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RefusedError("the file is not an index of weights", where=str(index), fix=_AGAIN) from error
    if not all(isinstance(shard, str) for shard in shards):
        raise RefusedError("the file is not an index of weights", where=str(index), fix=_AGAIN)
    return sorted(shards)


def _config(path: Path) -> dict[str, Any]:
    where = str(path / "config.json")
    try:
        config = json.loads(read_plain(path / "config.json"))
    except OSError as error:
        raise RefusedError(f"config.json cannot be read: {error.strerror}", where=where, fix=_AGAIN) from error
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"config.json is not JSON: {error}", where=where, fix=_AGAIN) from error
    if not isinstance(config, dict):
        raise RefusedError("config.json is not a JSON object", where=where, fix=_AGAIN)
    return config


def _is_known(config: dict[str, Any]) -> bool:
    from transformers import CONFIG_MAPPING

    return config.get("model_type") in CONFIG_MAPPING


def _model_class(config: dict[str, Any], path: Path, options: Options) -> Any:
    """Returns the transformers class that is listed first in `architectures`.

    Returns AutoModel if the folder defines its own class, or if only the config's `model_type` is known.
    """
    try:
        import transformers
    except ImportError as error:
        raise UnsupportedError(
            "a Hugging Face folder needs the package transformers",
            where=str(path),
            fix="pip install 'fuseconv[huggingface]'",
        ) from error
    architectures = config.get("architectures") or []
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    found = getattr(transformers, name, None) if isinstance(name, str) and name.isidentifier() else None
    if inspect.isclass(found) and issubclass(found, transformers.PreTrainedModel):
        return found
    if "auto_map" in config:
        options.require("code", "the folder's own model class", str(path), str(name))
        return transformers.AutoModel
    if name is None and _is_known(config):
        return transformers.AutoModel
    raise UnsupportedError(
        f"transformers {transformers.__version__} has no model class {name or config.get('model_type')}",
        where=f"{path}/config.json",
        fix="install the version of transformers that saved the model, or name an existing class in `architectures`",
    )


def _pretrained(model_class: Any, path: Path, options: Options) -> torch.nn.Module:
    import transformers
    from safetensors import SafetensorError

    arguments: dict[str, Any] = {"trust_remote_code": True} if "code" in options.trust else {}
    try:
        with _quiet(transformers.utils.logging):
            module, info = model_class.from_pretrained(
                path, local_files_only=True, use_safetensors=True, output_loading_info=True, dtype="auto", **arguments
            )
    except SafetensorError as error:
        raise RefusedError(f"the weights are damaged: {error}", where=str(path), fix="save the model again") from error
    except Exception as error:
        raise UpstreamError(
            f"transformers {transformers.__version__} cannot load the folder: {type(error).__name__}: {error}",
            where=str(path),
            fix="save it again with model.save_pretrained(folder), in the safetensors format",
        ) from error
    if lacking := [*info["missing_keys"], *(str(key) for key in info["mismatched_keys"])]:
        raise RefusedError(
            f"weights are missing or have another shape, so their values would be random: {listed(sorted(lacking))}",
            where=str(path),
            fix="save the model again with the class that `architectures` names",
        )
    if info["unexpected_keys"]:
        unused = listed(sorted(info["unexpected_keys"]))
        logger.warning("%s: %s does not use the weights %s", path, model_class.__name__, unused)
    assert isinstance(module, torch.nn.Module)
    for part in module.modules():  # encoder and decoder have separate configs
        config = getattr(part, "config", None)
        if config is not None and hasattr(config, "use_cache"):
            config.use_cache = False
    return module


@contextmanager
def _quiet(log: Any) -> Iterator[None]:
    """Suppresses transformers' progress bar and loading report within the block.

    `_pretrained` checks the missing and unexpected weights that the report would list.
    """
    level, bar = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bar:
            log.enable_progress_bar()


def _inputs(module: Any, options: Options) -> tuple[TensorSpec, ...]:
    """Returns the specs of the model's inputs, derived from its main input, the parameters of forward, and the config.

    For a method in `generating.KNOWN`, returns the inputs of the encoder. For any other method except `forward`, the
    inputs cannot be derived, and an empty tuple is returned.

    Raises:
        UsageError: fuseconv cannot derive inputs from the name of the model's main input.
    """
    known = generating.is_known(module, options.method)
    if options.method is not None and not known:
        return ()
    main = module.main_input_name
    recipe = _RECIPES.get(main)
    if recipe is None:
        raise UsageError(
            f"fuseconv cannot derive the inputs of a model whose main input is {main}",
            where=type(module).__name__,
            fix=f"specify them with --input: forward takes {', '.join(inspect.signature(module.forward).parameters)}",
        )
    specs = recipe(module)
    if module.config.is_encoder_decoder and not known and main != "decoder_input_ids":
        specs = (*specs, _token_ids(module, "decoder_input_ids", _sequence(module, "target")))
    if main == "input_ids" and hasattr(module.config, "vision_config"):
        specs = (*specs, *_pixels(module, Dim("images", BATCH.min, BATCH.max)))
    return specs


def _text(module: Any) -> tuple[TensorSpec, ...]:
    sequence = _sequence(module, "seq")
    accepted = inspect.signature(module.forward).parameters
    specs = [_token_ids(module, "input_ids", sequence)]
    if "attention_mask" in accepted:
        specs.append(TensorSpec("attention_mask", "i64", (BATCH, sequence), 0, 1))
    kinds = getattr(_text_config(module), "type_vocab_size", 0) or 0
    if "token_type_ids" in accepted and kinds > 1:
        specs.append(TensorSpec("token_type_ids", "i64", (BATCH, sequence), 0, kinds - 1))
    return tuple(specs)


def _token_ids(module: Any, name: str, sequence: Dim) -> TensorSpec:
    return TensorSpec(name, "i64", (BATCH, sequence), 0, _text_config(module).vocab_size - 1)


def _text_config(module: Any) -> Any:
    return module.config.get_text_config()


def _sequence(module: Any, name: str) -> Dim:
    """Returns the dim for the sequence length.

    Its maximum is the model's number of positions, up to `LARGEST_SEQUENCE`. The positions that an embedding reserves
    for padding, as in RoBERTa, do not count. A number of -1, as in XLNet, means that there is no maximum.
    """
    config = _text_config(module)
    sizes = (getattr(config, key, None) for key in ("max_position_embeddings", "max_target_positions", "n_positions"))
    longest = min(size for size in (*sizes, LARGEST_SEQUENCE) if size and size > 0)
    for part_name, part in module.named_modules():
        if part_name.endswith("position_embeddings") and isinstance(part, torch.nn.Embedding):
            offset = 0 if part.padding_idx is None else part.padding_idx + 1
            longest = min(longest, part.num_embeddings - offset)
    return Dim(name, 2, longest)


def _pixels(module: Any, batch: Dim = BATCH) -> tuple[TensorSpec, ...]:
    config = getattr(module.config, "vision_config", module.config)
    size = getattr(config, "image_size", None) or 224
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return (TensorSpec("pixel_values", _float(module), (batch, config.num_channels, height, width)),)


def _spectrogram(module: Any) -> tuple[TensorSpec, ...]:
    config = module.config
    shape = (BATCH, config.num_mel_bins, 2 * config.max_source_positions)
    return (TensorSpec("input_features", _float(module), shape),)


def _waveform(module: Any) -> tuple[TensorSpec, ...]:
    """Returns the spec of a waveform of one second.

    Its length is static, because the feature encoder divides the length many times.
    """
    return (TensorSpec("input_values", _float(module), (BATCH, 16_000)),)


def _float(module: Any) -> str:
    return SHORT_DTYPES[str(module.dtype)]


_RECIPES: dict[str, Callable[[Any], tuple[TensorSpec, ...]]] = {
    "input_features": _spectrogram,
    "input_ids": _text,
    "input_values": _waveform,
    "pixel_values": _pixels,
}

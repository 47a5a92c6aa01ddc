"""Recognizes models of other tools by their first bytes or file names, and describes how to convert each of them.

Sources: the ONNX and TensorFlow protobuf schemas, the HDF5 and GGUF specifications, the TFLite schema, and msgpack as
`flax.serialization` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from fuseconv.errors import UnsupportedError
from fuseconv.untrusted.files import is_plain

HEAD = 4096
"""The number of bytes that are read from the start of a file."""

_EXPORT = "torch.export.save(torch.export.export(module, inputs), 'model.pt2')"
_KERAS = (
    "in Python with KERAS_BACKEND=torch, keras.saving.load_model(path) returns a torch.nn.Module; save it with "
    f"{_EXPORT}, and convert model.pt2"
)
_TRANSFORMERS = "for a model of transformers, AutoModel.from_pretrained(folder, {}).save_pretrained(new)"


@dataclass(frozen=True)
class Foreign:
    """A format of another tool, which fuseconv cannot read.

    Attributes:
        name: the name of the format in the error, with an article.
        way: the fix in the error: how to get the model into a format that fuseconv reads.
    """

    name: str
    way: str

    def error(self, path: Path) -> UnsupportedError:
        """Returns the error for a file or folder of this format."""
        return UnsupportedError(
            f"this is {self.name}, but fuseconv converts only PyTorch models", where=str(path), fix=self.way
        )


ONNX = Foreign(
    "an ONNX model",
    f"save the PyTorch model from which it was exported with {_EXPORT}, and convert model.pt2; fuseconv writes ONNX "
    "itself. If you do not have that model, onnx2torch.convert(path) turns most ONNX files into a module to save",
)
KERAS = Foreign("a Keras model", _KERAS)
HDF5 = Foreign("an HDF5 file, as Keras writes", _KERAS)
SAVED_MODEL = Foreign(
    "a TensorFlow SavedModel",
    f"convert the model from which it was exported. Save a Keras model as .keras; then, {_KERAS}",
)
TFLITE = Foreign(
    "a TFLite model",
    f"convert the model from which it was compiled. Save a Keras model as .keras; then, {_KERAS}",
)
GGUF = Foreign(
    "a GGUF file",
    "convert the Hugging Face folder from which it was made. If you do not have that folder, "
    + _TRANSFORMERS.format("gguf_file=name")
    + " writes one with the dequantized weights",
)
FLAX = Foreign(
    "a msgpack file of arrays, as JAX and Flax write",
    _TRANSFORMERS.format("from_flax=True")
    + " in transformers 4 writes a folder that fuseconv converts. For other models, copy the arrays into a module with "
    f"load_state_dict, and save it with {_EXPORT}",
)
PYTHON = Foreign(
    "a Python file",
    f"save the module that it builds with {_EXPORT}, and convert model.pt2; or convert a file with its state dict, and "
    "name the module's class with --model file.py:CLASS and --trust code",
)
ARRAYS = Foreign(
    "an archive of NumPy arrays",
    f"copy the arrays into a module with load_state_dict, and save it with {_EXPORT}",
)


def foreign_file(head: bytes) -> Foreign | None:
    """Returns the format of a file, given its first `HEAD` bytes, or None if the format is not recognized."""
    return next((form for form, matches in _FILES.items() if matches(head)), None)


def foreign_zip(names: Collection[str]) -> Foreign | None:
    """Returns the format of a zip file, given the names of its members, or None if the format is not recognized."""
    if {"config.json", "metadata.json"} <= set(names):
        return KERAS
    return ARRAYS if names and all(name.endswith(".npy") for name in names) else None


def foreign_folder(path: Path) -> Foreign | None:
    """Returns the format of a folder according to its file names, or None if the format is not recognized."""
    return SAVED_MODEL if is_plain(path / "saved_model.pb") else None


def _is_onnx(head: bytes) -> bool:
    """Returns whether a protobuf message starts with the fields of an ONNX ModelProto: an IR version and a graph.

    Only the other fields of ModelProto may come before the graph.
    """
    at, version = 0, 0
    while at < len(head):
        key, at = _varint(head, at)
        value, at = _varint(head, at)
        match key >> 3, key & 7:
            case 1, 0:
                version = value
            case 5, 0:
                pass
            case 7, 2:
                return 0 < version < 1000
            case ((2 | 3 | 4 | 6 | 8 | 14), 2):
                at += value
            case _:
                return False
    return False


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Reads a protobuf integer at a position, and returns the integer and the position after it.

    If the data ends inside the integer, its bytes so far are used.
    """
    value, shift = 0, 0
    while at < len(data) and shift < 64:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            break
    return value, at


_MAP_OF_NAMES = re.compile(
    rb"(?:[\x81-\x8f]|\xde..|\xdf....)(?:[\xa1-\xbf]|\xd9.)[A-Za-z_][\w./-]*(?P<value>.)", re.DOTALL
)
_MAPS_AND_ARRAYS = frozenset((*range(0x80, 0x90), 0xC7, 0xC8, 0xC9, 0xDE, 0xDF))


def _is_flax(head: bytes) -> bool:
    """Returns whether msgpack data starts with a map from a name to another map or to an array."""
    found = _MAP_OF_NAMES.match(head)
    return found is not None and found["value"][0] in _MAPS_AND_ARRAYS


_FILES: dict[Foreign, Callable[[bytes], bool]] = {
    HDF5: lambda head: head.startswith(b"\x89HDF\r\n\x1a\n"),
    GGUF: lambda head: head.startswith(b"GGUF"),
    TFLITE: lambda head: head[4:8] == b"TFL3",
    FLAX: _is_flax,
    ONNX: _is_onnx,
}

"""Makes an ONNX model refer to tensors in the weight store of a bundle as external data.

ONNX external data is a file name, an offset and a length. A weights file stores the values of each tensor contiguously,
so ONNX Runtime can map the same file as the other targets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fuseconv.bundle.manifest import ONNX
from fuseconv.errors import FileError
from fuseconv.weights.store import Adopting, Store
from fuseconv.weights.table import STORE, Entry, Table
from fuseconv.weights.tensor_file import DTYPES, placed

SMALLEST = 256
"""The minimum size in bytes of a tensor that is stored outside the model. Shape inference reads smaller tensors."""


def unfolded(node: Any) -> bool | None:
    """Decides whether constant folding folds a node: False for the Transpose of a large weight, else None (default).

    Folding the Transpose would add a second, transposed copy of the weight. ONNX Runtime folds it when it loads the
    model. A float64 Transpose is folded, because ONNX Runtime would fuse it with a scale that it rounds to float32.
    """
    import onnx_ir as ir

    if node.op_type != "Transpose" or node.domain not in ("", "ai.onnx"):
        return None
    tensor = None if node.inputs[0] is None else node.inputs[0].const_value
    return None if tensor is None or tensor.nbytes < SMALLEST or tensor.dtype == ir.DataType.DOUBLE else False


def refer_to(model: Any, store: Store) -> None:
    """Replaces the model's large initializers with references to a store, and adds missing tensors to the store.

    Args:
        model: the onnx_ir model, which is changed in place.
        store: the weights of the bundle whose folder contains the model.

    Raises:
        FileError: a file cannot be written.
    """
    import onnx_ir as ir

    values = {name: value for name, value in model.graph.initializers.items() if _is_large(value.const_value)}
    tensors = {name: tensor for name, value in values.items() if (tensor := _tensor(value.const_value)) is not None}
    table = store.put(ONNX, tensors)
    for name in tensors:
        file, place = store.places[table.tensors[name].key]
        known = values[name].const_value
        values[name].const_value = ir.ExternalTensor(
            file, place.offset, place.size, known.dtype, shape=known.shape, name=name, base_dir=store.bundle
        )


def move(path: Path, store: Adopting, source: Path) -> None:
    """Updates a model that was moved from another bundle, so that it refers to the store of its new bundle.

    A model whose weights are in a file that only this model uses keeps this file, which is next to the model.

    Args:
        path: the path of the model in its new bundle.
        store: the store of the new bundle.
        source: the folder of the old bundle.

    Raises:
        FileError: a file cannot be written.
    """
    import onnx
    from onnx.external_data_helper import ExternalDataInfo

    model = onnx.load(path, load_external_data=False)
    outside = [one for one in model.graph.initializer if one.data_location == onnx.TensorProto.EXTERNAL]
    places = {one.name: ExternalDataInfo(one) for one in outside}
    if any(Path(place.location).name == STORE for place in places.values()):
        files = tuple(dict.fromkeys(place.location for place in places.values()))
        keys = {(file, place.offset): key for file in files for key, place in placed(source / file).items()}
        table = Table(files, {name: Entry(keys[place.location, place.offset]) for name, place in places.items()})
        moved = store.adopt(ONNX, table, source)
        stored = {name: store.places[entry.key] for name, entry in moved.tensors.items()}
        found = {name: (file, place.offset, place.size) for name, (file, place) in stored.items()}
    else:
        own = path.parent.relative_to(store.bundle)
        found = {name: ((own / one.location).as_posix(), one.offset, one.length) for name, one in places.items()}
    for one in outside:
        del one.external_data[:]
        for name, value in zip(("location", "offset", "length"), found[one.name], strict=True):
            one.external_data.add(key=name, value=str(value))
    try:
        path.write_bytes(model.SerializeToString())
    except OSError as error:
        raise FileError.unwritable("the model cannot be written", error, str(path)) from error


def _is_large(tensor: Any) -> bool:
    return tensor is not None and tensor.nbytes >= SMALLEST


def _tensor(value: Any) -> torch.Tensor | None:
    """Returns an initializer as a contiguous tensor, or None if a weights file does not support its dtype."""
    raw = value.raw if isinstance(getattr(value, "raw", None), torch.Tensor) else None
    if raw is None:
        try:
            raw = torch.from_numpy(value.numpy())
        except TypeError:  # a type of ml_dtypes
            return None
    return raw.detach().contiguous() if raw.dtype in DTYPES else None

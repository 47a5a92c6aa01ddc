"""Makes an ONNX model refer to the weight store of a bundle, as external data.

A weights file consists of a header and the values, and external data is a place in a file. Therefore ONNX Runtime can
map the same file as the other targets.
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
"""The minimum size in bytes of a tensor outside of the model. Shape inference reads smaller tensors."""


def unfolded(node: Any) -> bool | None:
    """Returns False for the transposition of a weight, so that it is not folded into another weight of this size.

    ONNX Runtime folds the transposition when it loads the model. Returns None for f64, where ONNX Runtime would also
    fuse the transposition with a factor that it rounds to f32.
    """
    import onnx_ir as ir

    if node.op_type != "Transpose" or node.domain not in ("", "ai.onnx"):
        return None
    tensor = None if node.inputs[0] is None else node.inputs[0].const_value
    return None if tensor is None or tensor.nbytes < SMALLEST or tensor.dtype == ir.DataType.DOUBLE else False


def refer_to(model: Any, store: Store) -> None:
    """Makes a model refer to tensors in a store, and adds the tensors that are not stored yet.

    Args:
        model: an onnx_ir model.
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
    """Makes a model that was moved from another bundle refer to a store, if it refers to the other bundle's store.

    Raises:
        FileError: a file cannot be written.
    """
    import onnx
    from onnx.external_data_helper import ExternalDataInfo

    model = onnx.load(path, load_external_data=False)
    outside = [one for one in model.graph.initializer if one.data_location == onnx.TensorProto.EXTERNAL]
    places = {one.name: ExternalDataInfo(one) for one in outside}
    if not any(Path(place.location).name == STORE for place in places.values()):
        return  # its weights are in a file of its own
    files = tuple(dict.fromkeys(place.location for place in places.values()))
    keys = {(file, place.offset): key for file in files for key, place in placed(source / file).items()}
    table = Table(files, {name: Entry(keys[place.location, place.offset]) for name, place in places.items()})
    moved = store.adopt(ONNX, table, source)
    for one in outside:
        file, place = store.places[moved.tensors[one.name].key]
        del one.external_data[:]
        for name, value in (("location", file), ("offset", place.offset), ("length", place.size)):
            one.external_data.add(key=name, value=str(value))
    try:
        path.write_bytes(model.SerializeToString())
    except OSError as error:
        raise FileError(f"the model cannot be written: {error.strerror}", where=str(path)) from error


def _is_large(tensor: Any) -> bool:
    return tensor is not None and tensor.nbytes >= SMALLEST


def _tensor(value: Any) -> torch.Tensor | None:
    """Returns the values of an initializer in contiguous memory.

    Returns None if a weights file cannot hold them.
    """
    raw = value.raw if isinstance(getattr(value, "raw", None), torch.Tensor) else None
    if raw is None:
        try:
            raw = torch.from_numpy(value.numpy())
        except TypeError:  # a type of ml_dtypes
            return None
    return raw.detach().contiguous() if raw.dtype in DTYPES else None

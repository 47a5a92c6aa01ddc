"""Pickles: what code one would run is told without running it."""

import io
import os
import pickle
import zipfile
from collections import OrderedDict

import pytest
import torch

from fuseconv.errors import RefusedError
from fuseconv.sources.pickles import TENSOR_GLOBALS, unsafe_globals


class Runs:
    """An object whose pickle calls a function."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


STATE = OrderedDict(a=torch.ones(2, 3), b=torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)))


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_unsafe_globals_of_code(protocol):
    name = f"{os.name}.system" if protocol > 2 or os.name == "posix" else "nt.system"
    assert unsafe_globals(pickle.dumps(Runs(os.system, "true"), protocol)) == (name,)


@pytest.mark.parametrize("value", [{}, [1, 2.0, "x", None, True], {"a": (1, b"x")}])
def test_plain_values_are_safe(value):
    assert unsafe_globals(pickle.dumps(value, 2)) == ()


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint16]
)
def test_tensors_are_safe(dtype):
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(2, dtype=dtype), "b": torch.nn.Parameter(torch.ones(2)), "c": dtype}, buffer)
    with zipfile.ZipFile(buffer) as archive:
        assert unsafe_globals(archive.read("archive/data.pkl")) == ()


def test_tensor_globals_are_those_of_torch():
    from torch._weights_only_unpickler import _get_allowed_globals

    assert set(_get_allowed_globals()) >= TENSOR_GLOBALS


@pytest.mark.parametrize(
    ("data", "names"),
    [
        # a name put together so that a disassembler sees another one: pushed, popped, pushed
        (b"\x80\x04\x8c\x02os\x8c\x06system\x8c\x05torch\x8c\x04Size00\x93.", ("torch.Size",)),
        (b"\x80\x04\x8c\x05torch\x8c\x04Size\x93.", ("torch.Size",)),
        (b"(S'true'\nios\nsystem\n.", ("os.system",)),
        (b"cos\nsystem\n(S'true'\ntR.", ("os.system",)),
        (b"cposix\nsystem\n.", ("posix.system",)),
        (b"\x80\x02\x82\x01.", ("?",)),
        (b"ctorch\nSize.__init__\n.", ("torch.Size.__init__",)),
        (b"ctorch\nhub.load\n.", ("torch.hub.load",)),
    ],
)
def test_unsafe_globals_by_hand(data, names):
    assert unsafe_globals(data) == names


@pytest.mark.parametrize(
    "data", [b"", b"\x80", b"\x80\x02", b"garbage", b"\x80\x02}q", b"\x80\x02X\xff\xff\xff\x7f", b"\xff."]
)
def test_damaged_pickles_are_refused(data):
    with pytest.raises(RefusedError, match="pickle is damaged"):
        unsafe_globals(data)

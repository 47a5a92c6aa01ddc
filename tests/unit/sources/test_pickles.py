"""Pickles: the code that one would run is reported without running it."""

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch

from fuseconv.errors import RefusedError
from fuseconv.sources.pickles import TENSOR_GLOBALS, unsafe_globals
from fuseconv.untrusted.plain_pickle import load_plain_pickle


class Runs:
    """An object whose pickle calls a function."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


STATE = OrderedDict(a=torch.ones(2, 3), b=torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)))


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_unsafe_globals_of_code(protocol: int) -> None:
    name = f"{os.name}.system" if protocol > 2 or os.name == "posix" else "nt.system"
    assert unsafe_globals(pickle.dumps(Runs(os.system, "true"), protocol)) == (name,)


@pytest.mark.parametrize("value", [{}, [1, 2.0, "x", None, True], {"a": (1, b"x")}])
def test_plain_values_are_safe(value: object) -> None:
    assert unsafe_globals(pickle.dumps(value, 2)) == ()


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint16]
)
def test_tensors_are_safe(dtype: torch.dtype) -> None:
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(2, dtype=dtype), "b": torch.nn.Parameter(torch.ones(2)), "c": dtype}, buffer)
    with zipfile.ZipFile(buffer) as archive:
        assert unsafe_globals(archive.read("archive/data.pkl")) == ()


def test_tensor_globals_are_those_of_torch() -> None:
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
def test_unsafe_globals_by_hand(data: bytes, names: tuple[str, ...]) -> None:
    assert unsafe_globals(data) == names


@pytest.mark.parametrize(
    "data", [b"", b"\x80", b"\x80\x02", b"garbage", b"\x80\x02}q", b"\x80\x02X\xff\xff\xff\x7f", b"\xff."]
)
def test_damaged_pickles_are_refused(data: bytes) -> None:
    with pytest.raises(RefusedError, match="pickle is damaged"):
        unsafe_globals(data)


STACKS = {
    "an empty stack": b"\x80\x02.",
    "a tuple of nothing": b"\x80\x02\x85.",
    "a memo that is not there": b"\x80\x02j\xff\xff\xff\xff.",
    "an item for no dict": b"\x80\x02K\x01K\x02K\x03s.",
    "a mark that is not there": b"\x80\x02t.",
    "an append to a number": b"\x80\x02K\x01K\x02a.",
    "a string that is cut": b"\x80\x02X\xff\x00\x00\x00a.",
    "a state for a number": b"\x80\x02K\x01K\x02b.",
    "an unknown opcode": b"\x80\x02\xff.",
}


@pytest.mark.parametrize("name", STACKS)
def test_a_pickle_that_fails_on_its_own_stack_is_no_tensors(name: str) -> None:
    """torch's unpickler raises whatever its machine fails with; here it is one error."""
    buffer = io.BytesIO()
    torch.save({"x": torch.ones(2)}, buffer)
    saved = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(buffer.getvalue())) as archive, zipfile.ZipFile(saved, "w") as damaged:
        for member in archive.namelist():
            damaged.writestr(member, STACKS[name] if member.endswith("data.pkl") else archive.read(member))
    saved.seek(0)
    with pytest.raises(pickle.UnpicklingError):
        load_plain_pickle(saved)

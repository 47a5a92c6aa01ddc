"""Lists the globals that a pickle would import, by disassembling the pickle instead of running it.

The pickle is disassembled. It is plain data if it references only the globals that plain tensors require.

Source: the Python `pickletools` manual; the globals are those that `torch.load(weights_only=True)` accepts.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Iterable
from typing import Any, BinaryIO

from fuseconv.errors import RefusedError

TENSOR_GLOBALS = frozenset(
    {
        "_codecs.encode",
        "collections.OrderedDict",
        "torch.Size",
        "torch.Tensor",
        "torch._tensor._rebuild_from_type_v2",
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_tensor",
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor_v3",
        "torch.device",
        "torch.nn.parameter.Parameter",
        "torch.serialization._get_layout",
    }
)
"""The globals that the pickle of a dict of plain tensors may name, in addition to storages and dtypes."""

_STORAGE_OR_DTYPE = re.compile(
    r"^torch\.((storage\.)?(Typed|Untyped|Double|Float|Half|BFloat16|Long|Int|Short|Char|Byte|Bool|ComplexFloat"
    r"|ComplexDouble)Storage|(b?float|u?int|complex)\d+|float8_\w+|bool)$"
)


def unsafe_globals(data: bytes | BinaryIO, where: str = "") -> tuple[str, ...]:
    """Returns the globals that one pickle references and that plain tensors do not require, sorted by name.

    The result is empty if the pickle is plain data. A stream is read up to the end of the pickle. A name that the
    pickle computes counts as unsafe, because a disassembler cannot determine it; `?` stands for an unreadable name.

    Args:
        data: the bytes of the pickle, or a stream positioned at its start.
        where: the path of the file, for error messages.

    Raises:
        RefusedError: the data is not a complete pickle.
    """
    spelled: set[str] = set()
    computed: set[str] = set()
    strings: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "GLOBAL":
                spelled.add(str(argument).replace(" ", "."))
            elif opcode.name == "INST":
                computed.add(str(argument).replace(" ", "."))
            elif opcode.name == "STACK_GLOBAL":
                computed.add(".".join(map(str, strings[-2:])) or "?")
            elif opcode.name in ("EXT1", "EXT2", "EXT4"):
                computed.add("?")
            elif opcode.name == "MEMOIZE":
                memo[len(memo)] = strings[-1] if strings else None
            elif opcode.name in ("GET", "BINGET", "LONG_BINGET"):
                strings.append(memo.get(int(str(argument))))
            elif isinstance(argument, str):
                strings.append(argument)
    except (ValueError, AttributeError, IndexError, TypeError, OverflowError, MemoryError) as error:
        raise RefusedError(
            f"the pickle is damaged: {error}",
            where=where,
            fix="copy or download the file again, or save the model again",
        ) from error
    return tuple(sorted(computed.union(name for name in spelled if not is_tensor_global(name))))


def checkpoint_key(data: bytes) -> str:
    """Returns the key under which a pickled dict probably contains a state dict, or "" if none is found.

    Args:
        data: a complete pickle, for which `unsafe_globals` raises no error.
    """
    operations = [(opcode.name, argument) for opcode, argument, _ in pickletools.genops(data)]
    if next((name for name, _ in operations if name not in ("PROTO", "FRAME")), "") != "EMPTY_DICT":
        return ""
    words = {argument for _, argument in operations if isinstance(argument, str)}
    return next((key for key in ("state_dict", "model_state_dict", "model") if key in words), "")


def is_tensor_global(name: str) -> bool:
    """Returns whether the pickle of a plain tensor, its storage or its dtype may reference this global."""
    return name in TENSOR_GLOBALS or _STORAGE_OR_DTYPE.match(name) is not None


def listed(names: Iterable[str], most: int = 12) -> str:
    """Joins names with commas for a message.

    If there are more than `most` names, the text ends with the number of omitted names.
    """
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")

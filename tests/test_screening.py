"""Hostile and damaged zips, pickles and serialized graphs: refused, quickly, and nothing of them runs."""

import io
import json
import os
import pickle
import stat
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from collections import OrderedDict

import pytest
import torch

from fuseconv.errors import FileError, RefusedError
from fuseconv.sources.pickles import TENSOR_GLOBALS, unsafe_globals
from fuseconv.sources.screening import Limits, member_root, read_member, screen_zip
from fuseconv.sources.serialized import screen_program


def write_zip(path, members, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("size", [0, 1, 1000, 3_000_001])
def test_reads_members(tmp_path, method, size):
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    path = write_zip(tmp_path / "a", [("m/a", data), ("m/b/c", b"other")], method)
    members = screen_zip(path)
    assert [member.name for member in members] == ["m/a", "m/b/c"]
    assert read_member(path, members[0]) == data
    assert read_member(path, members[1]) == b"other"
    assert member_root(members, path) == "m/"


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch 2.13 still writes and reads TorchScript
def test_reads_what_torch_writes(tmp_path):
    model = torch.nn.Linear(3, 2)
    torch.save(model.state_dict(), tmp_path / "a")
    torch.jit.save(torch.jit.trace(model, torch.ones(1, 3)), tmp_path / "b")
    torch.export.save(torch.export.export(model, (torch.ones(1, 3),)), tmp_path / "c.pt2")
    for name in ("a", "b", "c.pt2"):
        path = tmp_path / name
        with zipfile.ZipFile(path) as archive:
            assert {member.name: read_member(path, member) for member in screen_zip(path)} == {
                name: archive.read(name) for name in archive.namelist()
            }


def test_reads_zip64(tmp_path):
    path = tmp_path / "a"
    with zipfile.ZipFile(path, "w") as archive, archive.open("m/a", "w", force_zip64=True) as member:
        member.write(b"data")
    assert read_member(path, screen_zip(path)[0]) == b"data"


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "m/../../evil",
        "m/..",
        "/evil",
        "m//evil",
        "./evil",
        "m/./evil",
        "..\\evil",
        "m\\evil",
        "C:evil",
        "c:/evil",
        "m/e\x01vil",
        "m/e\nvil",
        "/",
        "x" * 1025,
    ],
)
def test_refuses_names(tmp_path, name):
    path = write_zip(tmp_path / "a", [("m/good", b""), (name, b"")])
    with pytest.raises(RefusedError, match="leave its folder"):
        screen_zip(path)


def test_refuses_nul_in_a_name(tmp_path):
    path = write_zip(tmp_path / "a", [("m/eXvil", b"")])
    path.write_bytes(path.read_bytes().replace(b"m/eXvil", b"m/e\0vil"))
    with pytest.raises(RefusedError, match="leave its folder"):
        screen_zip(path)


def test_refuses_symlinks(tmp_path):
    link = zipfile.ZipInfo("m/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    path = write_zip(tmp_path / "a", [(link, b"/etc/passwd")])
    with pytest.raises(RefusedError, match="symbolic link"):
        screen_zip(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("names", [("m/a", "m/a"), ("m/a", "m/a/")])
def test_refuses_duplicates(tmp_path, names):
    path = write_zip(tmp_path / "a", [(name, b"") for name in names])
    with pytest.raises(RefusedError, match="two members"):
        screen_zip(path)


def changed(data, at, value):
    return data[:at] + value + data[at + len(value) :]


def central(data):
    return data.rindex(b"PK\x01\x02")


def end(data):
    return data.rindex(b"PK\x05\x06")


DAMAGE = {
    "empty": lambda data: data[:0],
    "short": lambda data: data[:10],
    "cut by one": lambda data: data[:-1],
    "cut in half": lambda data: data[: len(data) // 2],
    "bytes in front": lambda data: b"#!/bin/sh\n" + data,
    "bytes behind": lambda data: data + b"\n",
    "comment": lambda data: changed(data, end(data) + 20, struct.pack("<H", 3)) + b"abc",
    "second end record": lambda data: data + data[end(data) :],
    "more members said": lambda data: changed(data, end(data) + 8, struct.pack("<2H", 3, 3)),
    "fewer members said": lambda data: changed(data, end(data) + 8, struct.pack("<2H", 1, 1)),
    "other disk": lambda data: changed(data, end(data) + 4, struct.pack("<H", 1)),
    "encrypted": lambda data: changed(data, central(data) + 8, struct.pack("<H", 1)),
    "unknown method": lambda data: changed(data, central(data) + 10, struct.pack("<H", 14)),
    "two sizes": lambda data: changed(data, central(data) + 24, struct.pack("<L", 99)),
    "too large": lambda data: changed(data, central(data) + 20, struct.pack("<2L", 10**6, 10**6)),
    "zip64 without sizes": lambda data: changed(data, central(data) + 24, b"\xff" * 4),
    "header elsewhere": lambda data: changed(data, central(data) + 42, struct.pack("<L", 7)),
    "header beyond": lambda data: changed(data, central(data) + 42, struct.pack("<L", 2**31)),
    "same header twice": lambda data: changed(data, central(data) + 42, struct.pack("<L", 0)),
    "other name in the header": lambda data: data.replace(b"m/b", b"m/x", 1),
    "bit in the bytes": lambda data: data.replace(b"hello", b"jello", 1),
    "not UTF-8": lambda data: data.replace(b"m/b", b"m/\xff"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_refuses_damage(tmp_path, damage):
    path = write_zip(tmp_path / "a", [("m/a", b"hello"), ("m/b", b"world")])
    assert len(screen_zip(path)) == 2
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    with pytest.raises(RefusedError) as caught:
        screen_zip(path)
    assert str(path) in caught.value.where
    assert caught.value.fix


def test_every_flipped_byte_is_refused_or_harmless(tmp_path):
    """A change anywhere either is refused, or changes no name and no byte that is read."""
    path = write_zip(tmp_path / "a", [("m/a", b"hello"), ("m/b", b"world" * 9)], zipfile.ZIP_DEFLATED)
    data = path.read_bytes()
    good = {member.name: read_member(path, member) for member in screen_zip(path)}
    for at in range(len(data)):
        path.write_bytes(changed(data, at, bytes([data[at] ^ 0x20])))
        try:
            members = screen_zip(path)
        except RefusedError:
            continue
        assert {member.name: read_member(path, member) for member in members} == good, at


@pytest.mark.parametrize(
    ("limits", "members", "said"),
    [
        (Limits(entries=2), [("m/a", b""), ("m/b", b""), ("m/c", b"")], "3 members"),
        (Limits(directory=60), [("m/a", b""), ("m/b", b"")], "directory of"),
        (Limits(floor=1000), [("m/a", b"\0" * 1_000_000)], "unpacks to 1000000 bytes"),
    ],
)
def test_refuses_beyond_limits(tmp_path, limits, members, said):
    path = write_zip(tmp_path / "a", members, zipfile.ZIP_DEFLATED)
    with pytest.raises(RefusedError, match=said):
        screen_zip(path, limits)


def bomb(path):
    """A zip of 11 MB that unpacks to 11 GB: 11,000 members share what one holds."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(b"\0" * 1_000_000) + packer.flush()
    crc = zlib.crc32(b"\0" * 1_000_000)
    with path.open("wb") as file:
        directory = b""
        for index in range(11_000):
            name, at = b"m/%05d" % index, file.tell()
            fields = (8, 0, 0, crc, len(packed), 1_000_000, len(name), 0)
            file.write(struct.pack("<4s2H", b"PK\x03\x04", 20, 0) + struct.pack("<3H3L2H", *fields) + name + packed)
            directory += struct.pack("<4s3H", b"PK\x01\x02", 20, 20, 0) + struct.pack("<3H3L2H", *fields)
            directory += struct.pack("<3H2L", 0, 0, 0, 0, at) + name
        at = file.tell()
        file.write(directory + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 11_000, 11_000, len(directory), at, 0))


def crowd(path):
    """A zip of a million empty members."""
    count = 1_000_000
    with path.open("wb") as file:
        names = [b"m/%06d" % index for index in range(count)]
        size = 30 + len(names[0])
        file.writelines(b"PK\x03\x04" + bytes(22) + b"\x08\0\0\0" + name for name in names)
        at = file.tell()
        for index, name in enumerate(names):
            file.write(b"PK\x01\x02" + bytes(24) + b"\x08\0" + bytes(12) + struct.pack("<L", index * size) + name)
        end = file.tell()
        record = (44, 45, 45, 0, 0, count, count, end - at, at)
        file.write(b"PK\x06\x06" + struct.pack("<Q2H2L4Q", *record))
        file.write(b"PK\x06\x07" + struct.pack("<LQL", 0, end, 1))
        file.write(struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, end - at, at, 0))


@pytest.mark.parametrize("make", [bomb, crowd])
def test_refuses_bombs_at_once(tmp_path, make):
    """In a process of its own, so that its memory is its own."""
    path = tmp_path / "model.pt"
    make(path)
    assert zipfile.is_zipfile(path)
    program = (
        "import resource, sys, time\n"
        "from pathlib import Path\n"
        "from fuseconv.errors import RefusedError\n"
        "from fuseconv.sources.screening import screen_zip\n"
        "start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: screen_zip(Path(sys.argv[1]))\n"
        "except RefusedError as error:\n"
        "    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "    print(time.perf_counter() - start, grown / 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    seconds, mebibytes = map(float, done.stdout.split())
    assert seconds < 1
    assert mebibytes < 256


def test_missing_file_is_a_file_error(tmp_path):
    with pytest.raises(FileError):
        screen_zip(tmp_path / "nothing")


def test_member_root_needs_one_folder(tmp_path):
    for names in (["a"], ["m/a", "n/b"], ["m/a", "b"]):
        path = write_zip(tmp_path / "a", [(name, b"") for name in names])
        with pytest.raises(RefusedError, match="one folder"):
            member_root(screen_zip(path), path)


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


@pytest.fixture(scope="module")
def program():
    """The JSON of a program with symbolic sizes, guards and containers."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x, pair):
            y = self.linear(x).reshape(x.shape[0], -1, 2)
            return {"y": torch.nn.functional.gelu(y, approximate="tanh"), "z": [pair[0] + x.shape[0], pair[1].max()]}

    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(
        Model(),
        (torch.ones(3, 4), (torch.ones(2), torch.ones(3))),
        dynamic_shapes=({0: batch}, ({}, {0: torch.export.Dim("n", min=2, max=9)})),
    )
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    with zipfile.ZipFile(buffer) as archive:
        return json.loads(archive.read(next(name for name in archive.namelist() if name.endswith("models/model.json"))))


def nodes(program):
    return program["graph_module"]["graph"]["nodes"]


def sizes(program):
    return program["graph_module"]["graph"]["tensor_values"]["x"]["sizes"]


def signature(program):
    return program["graph_module"]["module_call_graph"][0]["signature"]


def spec(context, kind="builtins.dict"):
    return json.dumps([1, {"type": kind, "context": context, "children_spec": []}])


EVIL = "__import__('os').system('touch ran')"


def edit_expression(text):
    return lambda program: sizes(program)[0].update(as_expr={"expr_str": text, "hint": {"as_int": 3}})


def edit_guard(text):
    return lambda program: program.update(guards_code=[text])


def edit_target(text):
    return lambda program: nodes(program)[0].update(target=text)


ATTACKS = {
    "expression calls": edit_expression(EVIL),
    "expression walks classes": edit_expression("().__class__.__base__.__subclasses__()"),
    "expression has an attribute": edit_expression("s0.func"),
    "expression has text that sympy reads again": edit_expression(f'Max(s0, "{EVIL}")'),
    "expression has text in a number": edit_expression(f'Integer("{EVIL}")'),
    "expression is a lambda": edit_expression("(lambda: s0)()"),
    "expression is a comprehension": edit_expression("[s0 for s0 in (1,)]"),
    "expression never ends": edit_expression("9**9**9**9"),
    "expression never ends, called": edit_expression("Pow(9, Pow(9, Pow(9, 9)))"),
    "expression is a large power": edit_expression("2**1000000000"),
    "expression is a factorial": edit_expression("factorial(1000000)"),
    "expression is deep": edit_expression("(" * 5000 + "s0" + ")" * 5000),
    "expression is long": edit_expression("s0+" * 50_000 + "s0"),
    "expression starts in a statement": edit_expression("s0\nimport os"),
    "range is of an expression that calls": lambda program: program["range_constraints"].update({EVIL: {}}),
    "guard calls": edit_guard(EVIL),
    "guard walks attributes": edit_guard("L['x'].__class__"),
    "guard closes the call": edit_guard("True) or print('evil'"),
    "guard calls what it gets": edit_guard("L['x'].size()[0].__init__()"),
    "target is a Python function": edit_target("torch.os.system"),
    "target is a loader": edit_target("torch.hub.load"),
    "target is torch.load": edit_target("torch.load"),
    "target is a private part of ops": edit_target("torch.ops.aten.__init__"),
    "target loads a library": edit_target("torch.ops.load_library"),
    "target gets attributes": edit_target("_operator.attrgetter"),
    "target opens a file": edit_target("torch.ops.aten.from_file.default"),
    "target writes a file": edit_target("torch.ops.aten.save.default"),
    "target is of an unknown library": edit_target("torch.ops.image.write_file.default"),
    "target is a dotted operator": edit_target("_operator.__class__.__base__"),
    "spec imports a default factory": lambda program: signature(program).update(
        in_spec=spec(
            {"default_factory_module": "antigravity", "default_factory_name": "fly", "dict_context": []},
            "collections.defaultdict",
        )
    ),
    "spec imports an enum": lambda program: signature(program).update(
        out_spec=spec(json.dumps([{"__enum__": True, "fqn": "antigravity:x", "name": "y"}]))
    ),
    "spec is an unknown class": lambda program: signature(program).update(out_spec=spec("[]", "evil.Class")),
    "spec has code for a key": lambda program: signature(program).update(out_spec=spec('["a\\"]=(__import__"]')),
    "spec is not JSON": lambda program: signature(program).update(in_spec="evil"),
    "input name is code": lambda program: program["graph_module"]["graph"]["inputs"][0].update(
        as_tensor={"name": f"x={EVIL}"}
    ),
    "parameter name is code": lambda program: program["graph_module"]["signature"]["input_specs"][0][
        "parameter"
    ].update(parameter_name=f'a"), {EVIL}, ("'),
    "argument name is code": lambda program: signature(program).update(forward_arg_names=[f"x={EVIL}"]),
    "node name is code": lambda program: nodes(program)[0].update(name=f"x = {EVIL}"),
    "module name is code": lambda program: program["graph_module"]["module_call_graph"][1].update(fqn=f"x({EVIL})"),
}


def test_a_real_program_passes(program):
    screen_program(json.dumps(program).encode(), "a.pt2")


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_on_the_graph_are_refused(program, attack):
    changed = json.loads(json.dumps(program))
    ATTACKS[attack](changed)
    assert changed != program
    start = time.perf_counter()
    with pytest.raises(RefusedError, match="would run code") as caught:
        screen_program(json.dumps(changed).encode(), "a.pt2")
    assert time.perf_counter() - start < 1
    assert caught.value.where == "a.pt2"


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"\xff"])
def test_damaged_graphs_are_refused(data):
    with pytest.raises(RefusedError, match="not readable JSON"):
        screen_program(data, "a.pt2")


@pytest.mark.parametrize(
    "text",
    [
        "s0",
        "2*s0 + 1",
        "s0**2",
        "Pow(Symbol('s41', positive=True, integer=True), Integer(2))",
        "Symbol('s31', positive=True, integer=True)",
        "Mul(Integer(2), Symbol('s31', positive=True, integer=True))",
        "FloorDiv(Symbol('s1', integer=True), Integer(2))",
        "Max(1, Mod(s0, 8))",
        "Float('0.5', precision=53)",
        "Piecewise((s0, s0 < 4), (4, True))",
    ],
)
def test_symbolic_sizes_pass(program, text):
    changed = json.loads(json.dumps(program))
    edit_expression(text)(changed)
    screen_program(json.dumps(changed).encode(), "a.pt2")


@pytest.mark.parametrize(
    "text",
    [
        "L['x'].size()[0] % 2 == 0",
        "L['args'][0].size()[1] <= 512 and 2 <= L['x'].size()[1]",
        "Mod(L['x'].size()[0], 2) != 0",
    ],
)
def test_guards_pass(program, text):
    changed = json.loads(json.dumps(program))
    edit_guard(text)(changed)
    screen_program(json.dumps(changed).encode(), "a.pt2")

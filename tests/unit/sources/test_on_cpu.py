"""Archives that were saved on a GPU are read on machines without one."""

import json
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fuseconv.sources import Options, read
from fuseconv.sources.on_cpu import on_cpu


class Placed(nn.Module):
    """Names the device of its input in three ways: a check, a new tensor, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("scale", torch.arange(8.0))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x.to(torch.float32))
        return y * self.get_buffer("scale") + torch.arange(8, device=x.device)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Path, Tensor, Tensor]:
    """An archive, the same as a GPU would have saved it, an input, and its result."""
    module, x = Placed().eval(), torch.randn(4, 8, dtype=torch.float64)
    host, device = tmp_path / "host.pt2", tmp_path / "device.pt2"
    torch.export.save(torch.export.export(module, (x,)), host)
    with zipfile.ZipFile(host) as source, zipfile.ZipFile(device, "w") as written:
        for name in source.namelist():
            data = source.read(name)
            if name.endswith(".json"):
                text = json.dumps(json.loads(data))
                data = text.replace('{"type": "cpu", "index": null}', '{"type": "cuda", "index": 0}').encode()
            written.writestr(name, data)
    return host, device, x, module(x)


def test_an_archive_of_a_gpu_computes_the_same_on_the_cpu(saved: tuple[Path, Path, Tensor, Tensor]) -> None:
    _, device, x, y = saved
    subject = read(device, options=Options())
    assert torch.equal(subject.module(x), y)
    assert {tensor.device.type for tensor in subject.module.state_dict().values()} == {"cpu"}


def test_only_such_an_archive_is_copied(saved: tuple[Path, Path, Tensor, Tensor]) -> None:
    host, device, *_ = saved
    with on_cpu(host) as path:
        assert path == host
    with on_cpu(device) as path:
        assert path != device
        with zipfile.ZipFile(path) as copy, zipfile.ZipFile(host) as original:
            assert copy.namelist() == original.namelist()
            weights = [name for name in copy.namelist() if "/weights/weight_" in name]
            assert weights
            assert all(copy.read(name) == original.read(name) for name in weights)
    assert not path.exists()


def test_only_what_is_screened_is_parsed(saved: tuple[Path, Path, Tensor, Tensor]) -> None:
    """The files that a user adds to an archive may hold anything, whatever their names end in."""
    host, device, x, y = saved
    deep = "[" * 100_000 + "]" * 100_000
    for path in (host, device):
        with zipfile.ZipFile(path, "a") as archive:
            root = archive.namelist()[0].partition("/")[0]
            for name, text in (("notes.json", "not JSON"), ("deep.json", deep), ("notes.pt", "not tensors")):
                archive.writestr(f"{root}/extra/{name}", text)
        assert torch.equal(read(path, options=Options()).module(x), y)


def test_the_copy_has_the_names_that_were_screened(saved: tuple[Path, Path, Tensor, Tensor]) -> None:
    """Python's zip reader decodes a name without a flag as code page 437."""
    _, device, *_ = saved
    with zipfile.ZipFile(device, "a") as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/extra/caf\N{LATIN SMALL LETTER E WITH ACUTE}", "")
    data = bytearray(device.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.rfind(signature)
        data[at + flags + 1] &= ~0x08
    device.write_bytes(data)
    with on_cpu(device) as path, zipfile.ZipFile(path) as copy:
        assert f"{root}/extra/caf\N{LATIN SMALL LETTER E WITH ACUTE}" in copy.namelist()

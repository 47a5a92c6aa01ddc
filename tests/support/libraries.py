"""The op library with changed bytes, as another build would have them."""

from pathlib import Path

from fuseconv.ops import library


def patched(path: Path, old: bytes, new: bytes) -> Path:
    content = library.library_paths("cpu")[0].read_bytes()
    assert content.count(old) >= 1
    path.write_bytes(content.replace(old, new))
    return path


def with_another_schema(path: Path) -> Path:
    """Writes a copy of the op library that names an argument of add_relu differently, and has the op sum_add."""
    other = patched(path, b"Tensor a, Tensor b) -> Tensor", b"Tensor a, Tensor z) -> Tensor")
    other.write_bytes(other.read_bytes().replace(b"mul_add", b"sum_add"))
    return other

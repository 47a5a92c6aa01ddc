"""Serializes a manifest as canonical JSON that includes its own hash, and parses such JSON."""

from __future__ import annotations

import hashlib
import json
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A record in a manifest.

    Unknown fields and values of the wrong type are errors.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SealedText(Strict):
    """A manifest whose text includes its own hash.

    Attributes:
        optional: the names of fields that are omitted from the text if they are empty. Therefore a manifest that was
            written before such a field was added still serializes to the same bytes.
    """

    optional: ClassVar[tuple[str, ...]] = ()

    def render(self) -> bytes:
        """Returns the canonical text of this manifest, including its own hash."""
        value = self.model_dump(mode="json")
        for name in self.optional:
            if not value[name]:
                del value[name]
        value["manifest_sha256"] = hashlib.sha256(spell(value)).hexdigest()
        return spell(value)

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Parses the text that `render` returned, and returns the manifest.

        Text with the same values in another format is an error.

        Raises:
            ValueError: the text is not a manifest, or differs from the text that `render` would return.
        """
        value = json.loads(data)
        if not isinstance(value, dict) or "manifest_sha256" not in value:
            raise ValueError("it does not contain its own hash")
        del value["manifest_sha256"]
        manifest = cls.model_validate(value)
        if manifest.render() != data:
            raise ValueError("it was modified after it was written")
        return manifest


def spell(value: Any) -> bytes:
    """Returns a value as canonical JSON: with sorted keys and an indent of 1."""
    return json.dumps(value, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"

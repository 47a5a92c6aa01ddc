"""An artifact that does not run is an error of its runtime, which ends the search for the cause and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fuseconv.blaming.through import called
from fuseconv.errors import UpstreamError


@pytest.mark.parametrize("kind", [RuntimeError, IndexError, ValueError])
def test_an_artifact_that_does_not_run(kind: type[Exception]) -> None:
    def fails(*_: Tensor) -> tuple[Tensor, ...]:
        raise kind("Shape mismatch attempting to re-use buffer")

    with pytest.raises(UpstreamError, match="does not run: Shape mismatch") as caught:
        called(fails, [torch.zeros(2)])
    assert isinstance(caught.value.__cause__, kind)

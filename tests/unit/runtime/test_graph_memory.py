"""What a user says about the memory of CUDA graphs."""

from pathlib import Path

import pytest

from fuseconv.errors import UsageError
from fuseconv.runtime.model import load


@pytest.mark.parametrize("memory", [None, 0, 10**12])
def test_any_number_of_bytes_is_a_limit(memory: int | None, bundle: Path) -> None:
    assert load(bundle, "torchscript", cuda_graphs_memory=memory).cuda_graphs.memory == 0


def test_less_than_none_is_an_error(bundle: Path) -> None:
    with pytest.raises(UsageError, match="cuda_graphs_memory is -1"):
        load(bundle, "torchscript", cuda_graphs_memory=-1)

"""Sizes in the middle of their ranges."""

import pytest
import torch

from fuseconv.graph.typical_sizes import typical


@pytest.mark.parametrize(
    ("least", "most", "middle"),
    [(1, 4096, 2049), (2, 3, 2), (64, 512, 288), (2, 2**15, 2**14 + 1), (2, None, 513), (3000, None, 3000)],
)
def test_a_symbol_is_in_the_middle_of_its_range(least: int, most: int | None, middle: int) -> None:
    """A range without an end is assumed to end at 1024. 1 is not typical."""
    batch = torch.export.Dim("batch", min=least, max=most)
    program = torch.export.export(
        torch.nn.Flatten(0), (torch.ones(most or least + 1, 8),), dynamic_shapes=({0: batch},)
    )
    (value,) = (node.meta["val"] for node in program.graph.find_nodes(op="placeholder"))
    (result,) = (node.meta["val"] for node in program.graph.output_node().args[0])
    assert [*map(typical, value.shape), *map(typical, result.shape)] == [middle, 8, 8 * middle]

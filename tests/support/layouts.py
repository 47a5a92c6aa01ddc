"""The layout of a tensor in memory."""

from torch import Tensor


def layout(tensor: Tensor) -> list[int]:
    """The strides that matter to a view: those of dims with more than one element."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]

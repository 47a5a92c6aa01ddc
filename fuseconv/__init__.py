"""fuseconv turns a PyTorch model into a fused, deployable bundle and proves that it computes the same thing."""

__version__ = "0.1.0"

"""Models for Triton Inference Server: their configuration and files, and what its Python backend runs."""

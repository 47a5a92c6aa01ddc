"""Writes models for Triton Inference Server, and contains the model code that Triton's Python backend runs."""

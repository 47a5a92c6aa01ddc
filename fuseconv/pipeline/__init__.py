"""Converts a model on disk to a verified bundle: read, capture, match, rewrite, write, verify."""

"""Converts a model on disk to a verified bundle: reads, captures, matches, rewrites, writes and verifies."""

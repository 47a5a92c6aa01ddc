"""Handling of untrusted files: opened by one function, read as data, run in a sandbox."""

"""Checks what this machine can build and run, and reports how to install what is missing."""

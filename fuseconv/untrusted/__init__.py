"""Handles untrusted files: one function opens them, and they are read as data or run in a sandbox."""

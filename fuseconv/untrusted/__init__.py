"""Handles untrusted files: opens them in one place, reads them as data, and runs untrusted programs in a sandbox."""

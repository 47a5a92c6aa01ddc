"""Converts a list of models, each in a child process. Retries failures, and skips models that have not changed.

`listing` reads the list, `fingerprint` computes the hash that tells whether a bundle is up to date, `attempt` runs one
conversion, `pool` runs all conversions, and `index` writes the page of results.
"""

"""Converts a list of models, each in a child process. Retries transient failures, and skips up-to-date bundles.

`listing` reads the list, `fingerprint` computes the hash that determines whether a bundle is up to date, `attempt` runs
one conversion, `pool` runs all conversions, and `index` writes an HTML page with the results.
"""

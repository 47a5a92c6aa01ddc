"""Converts a list of models: one child process per model, retried, and not made again if nothing has changed.

`listing` reads the list, `fingerprint` tells whether a bundle is finished, `attempt` runs one conversion, `pool` runs
them all, and `index` writes the page of results.
"""

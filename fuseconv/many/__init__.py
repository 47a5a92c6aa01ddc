"""Converts a list of models, each in a child process. Retries transient failures, and skips up-to-date bundles.

`listing` reads the list, and `run` converts it: workers (`pool` in this process, `on_ray` on a cluster) make an
`attempt` per model, and `output` moves each finished bundle to the output folder. `fingerprint` computes the hash that
determines whether a bundle is up to date, `conversion` runs `fuseconv convert` in a `child`, `row` is its result, and
`index` writes an HTML page with the results.
"""

"""Serves bundles over HTTP: the KServe v2 inference protocol, dynamic batching, and the engine that runs the batches.

The path of a request: `app` reads its body within the limits of `admission`, `requests` parses it and checks it against
the contract, `batching` groups it with others, `engine` runs the group, `responses` writes the outputs. Only `engine`
imports torch.
"""

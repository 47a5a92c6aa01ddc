"""Serves bundles over HTTP: the KServe v2 inference protocol, dynamic batching, and the engine that runs the batches.

The path of a request: `app` routes it, `bodies` reads its body within limits, `requests` parses it and checks it
against the contract, `batching` groups it with others, `engine` runs the group, and `responses` writes the outputs.
Only `engine` and `tensors` import torch.
"""

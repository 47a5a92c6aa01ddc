"""Serves bundles over HTTP with the KServe v2 inference protocol and dynamic batching.

For each request, `app` routes the request, `bodies` reads the body, `requests` parses the body and validates it against
the contract, `batching` groups the request with others into a batch, `engine` runs the batch, and `responses`
serializes the outputs. Only `engine` and `tensors` import torch.
"""

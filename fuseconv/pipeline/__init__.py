"""From a model on disk to a proved bundle: read, capture, match, rewrite, write, verify."""

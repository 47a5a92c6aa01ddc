"""The targets: one module each, all of one shape."""

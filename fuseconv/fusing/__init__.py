"""`fuse` turns a model in memory into a fused module that can be trained like the model."""

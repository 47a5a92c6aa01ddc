"""`fuse` turns a model in this process into a fused module that can be trained like the model."""

"""`fuse`: turns a model in this process into a fused module, which trains like the model."""

"""`fuse`: a model in this process becomes a fused module, which trains as the model does."""

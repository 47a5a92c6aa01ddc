"""Fuses models in this process so that they can be trained: `fuse`, and the backend of torch.compile."""

"""The weights of a bundle: one file of tensors that all targets read, mapped into memory."""

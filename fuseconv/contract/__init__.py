"""What a model takes and returns: names, dtypes, dims and their ranges; and tensors that satisfy it."""

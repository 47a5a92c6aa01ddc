"""The inputs and outputs of a model: names, dtypes, dims and their ranges; and tensors that satisfy them."""

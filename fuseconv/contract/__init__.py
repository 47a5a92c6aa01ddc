"""The contract of a model: the names, dtypes and dims of its inputs and outputs. Also generates matching tensors."""

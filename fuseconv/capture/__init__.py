"""A model becomes a captured program, held against the model it was captured from."""

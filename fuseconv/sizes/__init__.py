"""The sizes that a model and its captured program accept, and those at which the two may differ."""

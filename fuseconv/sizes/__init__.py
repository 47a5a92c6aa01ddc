"""Which sizes of a dim a model and its captured program take, and at which the two may differ."""

"""The captured program, and the original model with whose outputs the program's outputs must agree."""

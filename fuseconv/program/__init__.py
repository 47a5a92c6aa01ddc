"""The captured program, and the original model against whose outputs the program's outputs are checked."""

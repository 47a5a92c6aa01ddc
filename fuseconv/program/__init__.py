"""The captured program, and the original model with which it must agree."""

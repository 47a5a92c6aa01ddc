"""Which matches are replaced in which target: chosen by measuring, not only by the pattern."""

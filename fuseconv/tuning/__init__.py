"""Chooses, by measuring, which matches are replaced in which target."""

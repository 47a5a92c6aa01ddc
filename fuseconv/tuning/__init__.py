"""Chooses by measurement which matches are replaced in which target."""

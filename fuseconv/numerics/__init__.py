"""Compares outputs numerically: the fp64 reference, the tolerance table, and error statistics."""

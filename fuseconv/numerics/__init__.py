"""The fp64 reference, the tolerance table, and error statistics of an output."""

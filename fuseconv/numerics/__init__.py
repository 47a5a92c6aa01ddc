"""The fp64 reference, the one tolerance table, and how far an output lies from either."""

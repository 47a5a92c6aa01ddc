"""Reports what this machine can build and run, and how to fix the rest."""

"""Reports what this machine can build and run, with the fix for what it cannot."""

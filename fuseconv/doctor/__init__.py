"""What this machine can build and run, with the remedy where it cannot."""

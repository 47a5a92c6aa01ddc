"""What comes from a stranger: opened by one function, read as data, run in confinement."""

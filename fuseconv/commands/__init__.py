"""One file a command; `fuseconv.cli` imports it when it is called."""

"""One file per command. `fuseconv.cli` imports it when the command is called."""

"""Contains one module per command. `fuseconv.cli` imports a module when its command is called."""

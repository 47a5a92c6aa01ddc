"""The version of fuseconv, defined only here."""

__version__ = "0.1.0"

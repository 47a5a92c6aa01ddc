"""Starts processes quickly, as forks of one server process that has already imported torch."""

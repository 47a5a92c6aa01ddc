"""Starts processes quickly: as forks of one server process, which has already imported torch."""

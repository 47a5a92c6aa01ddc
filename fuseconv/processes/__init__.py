"""Processes that are forks of one process, which has imported torch."""

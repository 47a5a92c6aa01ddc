"""Loads bundles and calls them. Nothing here captures, matches or verifies."""

"""Loads bundles and runs them. Other packages capture models, match rules and verify bundles."""

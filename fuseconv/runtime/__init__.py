"""Loads bundles and runs them. Capture, matching and verification are in other packages."""

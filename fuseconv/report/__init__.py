"""Writes an HTML file that shows the content of one bundle, or of two bundles side by side."""

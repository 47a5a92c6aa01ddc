"""Writes an HTML report on one bundle, or on two bundles side by side."""

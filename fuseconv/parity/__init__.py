"""Verifies that every target of a bundle computes what the original model computes, in every case."""

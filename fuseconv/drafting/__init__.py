"""Drafts a rule from a subgraph of a model, and the pack of an op that computes it."""

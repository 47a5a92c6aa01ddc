"""Drafts a rule from a subgraph of a model, and a pack with an op that computes the subgraph."""

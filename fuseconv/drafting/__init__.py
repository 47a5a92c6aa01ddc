"""Drafts a rule for a subgraph of a model. Can also draft a pack with a new op that computes the subgraph."""

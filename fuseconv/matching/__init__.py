"""Finds where rules apply in a graph and rewrites the graph: search, plan, rewrite."""

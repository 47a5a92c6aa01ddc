"""Finds where rules apply in a graph, plans the rewrites, and rewrites the graph."""

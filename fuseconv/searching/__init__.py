"""Finds other forms of the linear algebra in a program: all forms that the rules prove equal, and the cheapest."""

"""The meaning of graph nodes: their ops, shapes, elements, and the memory they share."""

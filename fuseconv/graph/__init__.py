"""What the nodes of a graph are: their ops and what those do, their shapes, their elements, the memory they share."""

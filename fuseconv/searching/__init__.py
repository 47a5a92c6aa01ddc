"""Other forms of the linear algebra in a program: all that the equalities of the rules give, and the cheapest."""

"""Whether rules are right: on variants of their examples, by algebra, and at every site."""

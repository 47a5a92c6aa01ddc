"""The rule language: the schema, grammar and predicates of rule files. Reading and checking a file needs no torch."""

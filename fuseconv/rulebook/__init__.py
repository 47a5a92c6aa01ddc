"""The rule language: schema, grammar and predicates of rule files, read and checked without torch."""

"""What a rule file says: its schema, its language, its predicates; read and checked without torch."""

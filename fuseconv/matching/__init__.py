"""Where rules apply in a graph, and what they make of it: search, plan, rewrite."""

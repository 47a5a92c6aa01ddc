"""Finds equivalent forms of the linear algebra in a program by applying rules, and extracts the cheapest forms."""

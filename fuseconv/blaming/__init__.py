"""Finds where a numerical difference comes from, by comparing values inside a program, its fused form and targets."""

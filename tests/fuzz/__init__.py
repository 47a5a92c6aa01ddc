"""Machines that look for mistakes: random models, mutated rules, damaged files. See docs/fuzzing.md."""

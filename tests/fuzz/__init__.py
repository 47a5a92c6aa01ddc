"""Fuzzers: random models, mutated rules, damaged files. See docs/fuzzing.md."""

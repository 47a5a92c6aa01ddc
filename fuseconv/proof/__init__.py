"""Tests whether rules are correct: numerically on variants of their examples, by algebra, and at every match."""

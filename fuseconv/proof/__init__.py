"""Tests whether rules are correct: on variants of their examples, by algebra, and at every match."""

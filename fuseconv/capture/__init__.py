"""Captures a model as a program and compares the program with the model."""

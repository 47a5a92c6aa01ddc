"""Defines the contract of a model, which gives the names, dtypes and dims of its inputs, and generates test inputs."""

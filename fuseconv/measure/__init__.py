"""Measures the speed of a bundle on this machine: latency and cold start."""

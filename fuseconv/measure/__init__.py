"""How fast a bundle is on this machine: latency, and the time from nothing to a first result."""

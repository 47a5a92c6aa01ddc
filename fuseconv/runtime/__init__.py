"""Loading a bundle and calling it. Nothing here captures, matches or proves."""

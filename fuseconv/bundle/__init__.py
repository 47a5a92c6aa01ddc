"""The bundle on disk: its manifest, and how a folder is replaced in one step. No torch."""

"""The bundle on disk: its manifest, the hashes of its files, and the atomic replacement of its folder.

Nothing here imports torch.
"""

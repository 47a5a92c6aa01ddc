"""The bundle on disk: its manifest, and the atomic replacement of its folder.

Nothing here imports torch.
"""

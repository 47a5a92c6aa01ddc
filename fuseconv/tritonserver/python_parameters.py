"""The parameters in `config.pbtxt` that the model of the Python backend reads."""

BUNDLE = "bundle"
"""The parameter with the folder of the bundle, relative to that of the version; and the name of that folder."""

TARGET = "target"
"""The parameter with the target to load. Without it, the default target of the bundle is."""

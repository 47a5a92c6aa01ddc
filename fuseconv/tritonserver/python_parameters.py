"""Defines the names of the parameters in `config.pbtxt` that `TritonPythonModel` reads."""

BUNDLE = "bundle"
"""The parameter that gives the folder of the bundle, relative to the version's folder. Also the folder's name."""

TARGET = "target"
"""The parameter that names the target to load. Without this parameter, the bundle's default target is loaded."""

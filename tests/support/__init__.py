"""Shared by several tests: models, tables, bundles and comparisons. Nothing here is a test."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

"""What several tests share: models, tables, bundles and comparisons. Nothing in here is a test."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

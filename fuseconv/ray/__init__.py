"""Offline inference with Ray Data: a bundle as a function of batches. Does not import Ray."""

from fuseconv.ray.predictor import Predictor

__all__ = ["Predictor"]

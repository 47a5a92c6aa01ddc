"""Models of speech and sound: encoders of spectra and of waves, with padding masks, and a vocoder."""

from __future__ import annotations

import torch
from zoo_parts import Inputs, hub, mask

SPEECH_STEM = hub(
    "WhisperForAudioClassification",
    ("input_features",),
    ("logits",),
    layers="encoder_layers",
    d_model=768,
    encoder_layers=2,
    encoder_attention_heads=12,
    encoder_ffn_dim=3072,
    num_labels=35,
)
"""Whisper small's two convolutions of the spectrum and two of its layers, with a classifier of spoken commands."""
WAV2VEC2 = hub("Wav2Vec2Model", ("input_values", "attention_mask"))
CONFORMER = hub(
    "Wav2Vec2ConformerModel",
    ("input_values", "attention_mask"),
    position_embeddings_type="relative",
    hidden_size=512,
    num_attention_heads=8,
    intermediate_size=2048,
)
FAST_CONFORMER = hub("ParakeetEncoder", ("input_features", "attention_mask"), config="ParakeetEncoderConfig")
VOCODER = hub("SpeechT5HifiGan", ("spectrogram",), (), layers="", config="SpeechT5HifiGanConfig")


def waves(shape: tuple[int, ...], generator: torch.Generator) -> Inputs:
    """Draws waves [batch, samples] and their mask."""
    return torch.randn(*shape, generator=generator), mask(shape, generator)


def spectra(shape: tuple[int, ...], generator: torch.Generator) -> Inputs:
    """Draws spectra [batch, frames, 80] and their mask [batch, frames]."""
    return torch.randn(*shape, generator=generator), mask(shape[:2], generator)

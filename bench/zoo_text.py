"""Language models of the transformers library, in the sizes of their papers."""

from __future__ import annotations

import torch
from zoo_parts import Draw, Inputs, hub, ids

IDS = ("input_ids",)
MASKED = ("input_ids", "attention_mask")
VOCABULARY = 32_000
"""Of those whose own is larger: a table that is only looked up takes long to read and write, and no time in a call."""
POOLED = ("last_hidden_state", "pooler_output")

BERT = hub("BertModel", IDS, POOLED)
BERT_MASKED = hub("BertModel", MASKED, POOLED)
BERT_LARGE = hub(
    "BertModel", IDS, POOLED, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
)
DISTILBERT = hub("DistilBertModel", MASKED, layers="n_layers")
ALBERT = hub(
    "AlbertModel", MASKED, POOLED, hidden_size=768, num_attention_heads=12, intermediate_size=3072, embedding_size=128
)
MODERNBERT = hub("ModernBertModel", MASKED)
"""Rotary, pre-norm, GEGLU; one layer of three attends globally, the others to a window of 128 tokens."""
DEBERTA = hub(
    "DebertaV2Model",
    MASKED,
    vocab_size=VOCABULARY,
    hidden_size=768,
    num_hidden_layers=12,
    num_attention_heads=12,
    intermediate_size=3072,
    relative_attention=True,
    position_buckets=256,
    norm_rel_ebd="layer_norm",
    share_att_key=True,
    pos_att_type=["p2c", "c2p"],
    layer_norm_eps=1e-7,
    max_relative_positions=-1,
    position_biased_input=False,
    type_vocab_size=0,
)
T5 = hub("T5EncoderModel", MASKED, layers="num_layers", config="T5Config", num_layers=12, d_model=768, d_ff=3072)
"""T5-base's encoder: relative positions as a bias, RMS norms."""
GPT2 = hub("GPT2Model", IDS, layers="n_layer", use_cache=False)
BLOOM = hub(
    "BloomModel",
    MASKED,
    layers="n_layer",
    vocab_size=VOCABULARY,
    hidden_size=1024,
    n_layer=24,
    n_head=16,
    use_cache=False,
)
"""Bloom 560M: ALiBi."""
PYTHIA = hub(
    "GPTNeoXModel",
    IDS,
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
    use_cache=False,
)
"""Pythia 410M: attention and perceptron side by side, a quarter of each head rotary."""
LLAMA = hub(
    "LlamaModel",
    IDS,
    vocab_size=128_256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=64,
    use_cache=False,
)
QWEN3 = hub(
    "Qwen3Model",
    IDS,
    vocab_size=151_936,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    use_cache=False,
)
GEMMA2 = hub("Gemma2Model", MASKED, vocab_size=VOCABULARY, num_hidden_layers=26, use_cache=False)
"""2B: norms before and after, scores bounded by tanh, every other layer with a window."""
DECODER = hub(
    "WhisperModel",
    ("input_ids", "encoder_hidden_states"),
    layers="decoder_layers encoder_layers",
    part="decoder",
    d_model=768,
    decoder_layers=12,
    decoder_attention_heads=12,
    decoder_ffn_dim=3072,
    use_cache=False,
)
"""Whisper small's: causal attention, then attention to what was heard."""


def heard(below: int, frames: int, width: int) -> Draw:
    """Returns what draws tokens [batch, tokens] and the states of an encoder [batch, frames, width]."""

    def draw(shape: tuple[int, ...], generator: torch.Generator) -> Inputs:
        return *ids(below)(shape, generator), torch.randn(shape[0], frames, width, generator=generator)

    return draw

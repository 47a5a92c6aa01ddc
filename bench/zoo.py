"""The models that are timed: sizes of the papers, random weights, the classes that users have; no downloads."""

from __future__ import annotations

import zoo_channels
import zoo_decoders
import zoo_dit
import zoo_families
import zoo_images
import zoo_maxvit
import zoo_mixing
import zoo_pairs
import zoo_relations
import zoo_restoration
import zoo_separation
import zoo_series
import zoo_sets
import zoo_signals
import zoo_spectral
import zoo_speech
import zoo_tables
import zoo_text
import zoo_vision
from torch import nn
from zoo_convolutional import ConvMixer, DenseNet, Enlarger, ResNeXt, ShuffleNet
from zoo_diffusion import DownBlock, ImageDecoder, latents
from zoo_experts import MixtureDecoder
from zoo_images import lively
from zoo_mixer import Mixer
from zoo_mobilenet import MobileNetV3Large
from zoo_parts import Axis, Draw, Entry, ids, noise
from zoo_pyramids import Detector, UNet
from zoo_relations import some_of


def batch(most: int, step: int = 1) -> Axis:
    """Returns the axis of a batch."""
    return Axis("batch", range(step, most + 1, step))


def tokens(most: int, least: int = 8, inputs: int | None = None) -> Axis:
    """Returns the axis of a length."""
    return Axis("tokens", range(least, most + 1), 1, inputs)


def side(name: str, at: int, sizes: range) -> Axis:
    """Returns an axis of images, which are the first input."""
    return Axis(name, sizes, at, inputs=1)


def sides(sizes: range) -> tuple[Axis, Axis]:
    """Returns the axes of the height and the width of images."""
    return side("height", 2, sizes), side("width", 3, sizes)


ROWS = (batch(4096),)
BATCH = (batch(32),)
TEXT = (batch(8), tokens(128))
LONG = (batch(4), tokens(512, 16))
SIDES = (batch(8), *sides(range(64, 513, 32)))
PYRAMID_SIDES = (batch(8), *sides(range(128, 513, 64)))
SMALL_SIDES = (batch(4), *sides(range(16, 65, 8)))
WAVES = (batch(8), Axis("samples", range(16_000, 80_001, 320), 1))
HALVED_WAVES = (batch(8), Axis("samples", range(16_000, 80_001, 640), 1))  # SEW halves the number of frames
IMAGE = (3, 224, 224)


def _tokens_of(family: zoo_families.Family) -> Draw:
    return ids(zoo_families.VOCABULARY, masked=family.takes == zoo_families.MASKED)


UNTUNED = (
    Entry("rcan", (4, 3, 96, 96), "f16", zoo_restoration.Rcan, noise(), (batch(4), *sides(range(32, 97, 8)))),
    Entry("unet-3d", (2, 1, 64, 64, 64), "f16", zoo_restoration.UNet3d, noise(), (batch(2),)),
    Entry("yolo", (16, 3, 320, 320), "f16", zoo_restoration.Yolo, noise(), (batch(16), *sides(range(160, 321, 32)))),
    Entry("stylegan2", (8, 512), "f16", zoo_restoration.StyleGan, noise(), (batch(8),)),
    Entry("xcit-s", (32, *IMAGE), "f16", zoo_mixing.Xcit, noise(), BATCH),
    Entry(
        "linear-attention", (8, 1024), "bf16", zoo_mixing.LINEAR_ATTENTION, some_of(8000), (batch(8), tokens(1024, 16))
    ),
    Entry("rwkv", (8, 512), "bf16", zoo_mixing.RWKV, some_of(8000), (batch(8), tokens(512, 16))),
    Entry(
        "wavenet",
        (4, 1, 16_000),
        "f16",
        zoo_mixing.WaveNet,
        noise(),
        (batch(4), Axis("samples", range(2000, 16_001, 100), 2)),
    ),
    Entry("triangles", (1, 256, 256, 128), "bf16", zoo_relations.Triangles, noise(), (batch(2),)),
    Entry(
        "egnn",
        (8, 64, 128),
        "f32",
        zoo_relations.Egnn,
        zoo_relations.molecules,
        (batch(8), Axis("atoms", range(8, 65), 1)),
    ),
    Entry("din", (512, 100), "f16", zoo_relations.Din, some_of(50_000), (batch(512), Axis("items", range(8, 101), 1))),
    Entry("tabtransformer", (512, 20), "f16", zoo_relations.TabTransformer, some_of(20_000), (batch(512),)),
    Entry("perceiver", (8, 1024, 64), "bf16", zoo_relations.Perceiver, noise(), (batch(8), tokens(1024, 16))),
    Entry(
        "line-reader",
        (16, 1, 32, 256),
        "f16",
        zoo_relations.LineReader,
        noise(),
        (batch(16), Axis("width", range(32, 257, 4), 3)),
    ),
    Entry("gfnet", (32, *IMAGE), "f32", zoo_spectral.GfNet, noise(), BATCH),
    Entry("hyena", (4, 1024), "f32", zoo_spectral.Hyena, some_of(8000), (batch(4),)),
    Entry("llama-complex", (4, 512), "bf16", zoo_decoders.ComplexLlama, some_of(8000), LONG),
    Entry("retnet", (4, 512), "bf16", zoo_decoders.RetNet, some_of(8000), LONG),
    Entry("nafnet", (4, 3, 128, 128), "f16", zoo_channels.NafNet, noise(), (batch(4), *sides(range(64, 129, 4)))),
    Entry("restormer", (2, 3, 128, 128), "f16", zoo_channels.Restormer, noise(), (batch(2), *sides(range(64, 129, 4)))),
    Entry("maxvit", (16, *IMAGE), "f16", zoo_maxvit.MaxVit, noise(), (batch(16),)),
    Entry("demucs", (8, 1, 16_084), "f16", zoo_signals.Demucs, noise(), (batch(8),)),
    Entry("vocos", (8, 100, 400), "f16", zoo_signals.Vocos, noise(), (batch(8), Axis("frames", range(20, 401), 2))),
    Entry(
        "schnet",
        (16, 64),
        "f32",
        zoo_sets.SchNet,
        zoo_sets.atoms,
        (batch(16), Axis("atoms", range(8, 65), 1)),
    ),
    Entry("detr", (8, 512, 20, 20), "f16", zoo_sets.Detr, noise(), (batch(8), *sides(range(8, 21)))),
)
"""Models that were written after the rules and the kernels, and first timed as they were."""

ENTRIES = (
    Entry("mlp-4x4096-gelu", (4096,), "bf16", zoo_tables.mlp([4096] * 5, nn.GELU), noise(4096), ROWS),
    Entry("mlp-4x1024-relu", (512,), "f32", zoo_tables.mlp([1024] * 5, nn.ReLU), noise(1024), ROWS),
    Entry("mlp-3x128-relu", (4096,), "f16", zoo_tables.mlp([128] * 4, nn.ReLU), noise(128), ROWS),
    Entry("bert-base", (1, 128), "f16", zoo_text.BERT, ids(30_522), TEXT, "bert"),
    Entry("bert-base", (32, 128), "f16", zoo_text.BERT, ids(30_522), TEXT, "bert"),
    Entry("bert-base-masked", (32, 128), "f16", zoo_text.BERT_MASKED, ids(30_522, masked=True), TEXT, "bert"),
    Entry("vit-b-16", (64, *IMAGE), "bf16", zoo_vision.VIT, noise(), BATCH, "vit"),
    Entry("dlrm", (2048,), "f16", lambda _: zoo_tables.Recommender(), zoo_tables.clicks, ROWS),
    Entry("gpt2", (1, 1024), "f16", zoo_text.GPT2, ids(50_257), LONG, "gpt2"),
    Entry("llama-1b", (1, 2048), "bf16", zoo_text.LLAMA, ids(128_256), LONG),
    Entry("qwen3-0.6b", (1, 2048), "bf16", zoo_text.QWEN3, ids(151_936), LONG, "qwen3"),
    Entry("resnet-50", (64, *IMAGE), "f16", zoo_images.RESNET_50, noise(), SIDES),
    Entry("convnext-t", (64, *IMAGE), "f16", zoo_images.CONVNEXT_T, noise(), SIDES),
    Entry("bert-large", (1, 128), "f16", zoo_text.BERT_LARGE, ids(30_522), TEXT, "bert"),
    Entry("bert-large", (32, 128), "f16", zoo_text.BERT_LARGE, ids(30_522), TEXT, "bert"),
    Entry("resnet-50", (1, *IMAGE), "f16", zoo_images.RESNET_50, noise(), SIDES),
    Entry("convnext-t", (1, *IMAGE), "f16", zoo_images.CONVNEXT_T, noise(), SIDES),
    Entry("mobilenet-v3-large", (1, *IMAGE), "f16", lively(lambda _: MobileNetV3Large()), noise(), SIDES),
    Entry("mobilenet-v3-large", (32, *IMAGE), "f16", lively(lambda _: MobileNetV3Large()), noise(), SIDES),
    Entry("efficientnet-b0", (1, *IMAGE), "f16", zoo_images.EFFICIENTNET_B0, noise(), BATCH),
    Entry("efficientnet-b0", (32, *IMAGE), "f16", zoo_images.EFFICIENTNET_B0, noise(), BATCH),
    Entry("unet", (32, 3, 256, 256), "f16", lively(lambda _: UNet()), noise(), SIDES),
    Entry("diffusion-block", (2, 320, 64, 64), "f16", DownBlock, latents, SMALL_SIDES),
    Entry("diffusion-block", (8, 320, 64, 64), "bf16", DownBlock, latents, SMALL_SIDES),
    Entry("detector-pyramid", (32, 3, 512, 512), "f16", lively(Detector), noise(), PYRAMID_SIDES),
    Entry("segformer-b2", (32, 3, 512, 512), "f16", zoo_vision.SEGFORMER_B2, noise(), SIDES),
    Entry("convnextv2-t", (32, *IMAGE), "bf16", zoo_images.CONVNEXT_V2_T, noise(), SIDES),
    Entry("mlp-mixer-b-16", (32, *IMAGE), "bf16", Mixer, noise(), BATCH),
    Entry("regnet-y-4gf", (32, *IMAGE), "f16", zoo_images.REGNET_Y, noise(), SIDES),
    Entry("mobilenet-v2", (32, *IMAGE), "f16", zoo_images.MOBILENET_V2, noise(), SIDES),
    Entry("resnet-18", (32, *IMAGE), "f16", zoo_images.RESNET_18, noise(), SIDES),
    Entry("speech-stem", (32, 80, 3000), "f16", zoo_speech.SPEECH_STEM, noise(), BATCH),
    Entry("distilbert", (16, 128), "f32", zoo_text.DISTILBERT, ids(30_522, masked=True), TEXT),
    Entry("albert-base", (16, 128), "f16", zoo_text.ALBERT, ids(30_000, masked=True), TEXT),
    Entry("modernbert-base", (16, 512), "bf16", zoo_text.MODERNBERT, ids(50_000, masked=True), LONG),
    Entry("deberta-v3-base", (16, 128), "f16", zoo_text.DEBERTA, ids(zoo_text.VOCABULARY, masked=True), TEXT),
    Entry("t5-base", (8, 512), "bf16", zoo_text.T5, ids(32_000, masked=True), LONG),
    Entry("bloom-560m", (4, 512), "f16", zoo_text.BLOOM, ids(zoo_text.VOCABULARY, masked=True), LONG),
    Entry("pythia-410m", (1, 512), "f16", zoo_text.PYTHIA, ids(50_000), LONG),
    Entry("gemma2-2b", (1, 1024), "bf16", zoo_text.GEMMA2, ids(zoo_text.VOCABULARY, masked=True), LONG),
    Entry("moe-8x2", (1, 512), "bf16", MixtureDecoder, ids(32_000), LONG),
    Entry(
        "whisper-decoder",
        (8, 128),
        "f16",
        zoo_text.DECODER,
        zoo_text.heard(50_000, 1500, 768),
        (batch(8), tokens(128, inputs=1)),
    ),
    Entry("wav2vec2-base", (8, 80_000), "f16", zoo_speech.WAV2VEC2, zoo_speech.waves, WAVES),
    Entry("conformer", (8, 80_000), "f16", zoo_speech.CONFORMER, zoo_speech.waves, WAVES),
    Entry(
        "fast-conformer",
        (8, 800, 80),
        "bf16",
        zoo_speech.FAST_CONFORMER,
        zoo_speech.spectra,
        (batch(8),),
    ),
    Entry("hifi-gan", (8, 200, 80), "f16", zoo_speech.VOCODER, noise(), (batch(8), tokens(200))),
    Entry("dinov2-s", (32, *IMAGE), "f16", zoo_vision.DINOV2, noise(), BATCH),
    Entry("beit-b-16", (32, *IMAGE), "bf16", zoo_vision.BEIT, noise(), BATCH),
    Entry("swin-t", (32, *IMAGE), "f16", zoo_vision.SWIN, noise(), BATCH),
    Entry("swinv2-t", (32, *IMAGE), "bf16", zoo_vision.SWIN_V2, noise(), BATCH),
    Entry("pvt-v2-b0", (32, *IMAGE), "f16", zoo_vision.PVT_V2, noise(), BATCH),
    Entry("hiera-t", (32, *IMAGE), "bf16", zoo_vision.HIERA, noise(), BATCH),
    Entry("cvt-13", (32, *IMAGE), "f16", zoo_vision.CVT, noise(), BATCH),
    Entry("mobilevit-s", (32, 3, 256, 256), "f16", zoo_vision.MOBILE_VIT, noise(), BATCH),
    Entry("levit-128s", (64, *IMAGE), "f16", zoo_vision.LEVIT, noise(), BATCH),
    Entry("poolformer-s12", (32, *IMAGE), "f16", zoo_vision.POOL_FORMER, noise(), BATCH),
    Entry("focalnet-t", (32, *IMAGE), "f16", zoo_vision.FOCAL_NET, noise(), BATCH),
    Entry("resnext-50", (32, *IMAGE), "bf16", lively(ResNeXt), noise(), SIDES),
    Entry("densenet-121", (32, *IMAGE), "f16", lively(DenseNet), noise(), SIDES),
    Entry("shufflenet-v2", (32, *IMAGE), "f32", lively(ShuffleNet), noise(), SIDES),
    Entry("convmixer-768", (32, *IMAGE), "f16", lively(ConvMixer), noise(), BATCH),
    Entry("edsr", (4, 3, 128, 128), "f16", Enlarger, noise(), SMALL_SIDES),
    Entry("dit-b-2", (16, 4, 32, 32), "bf16", zoo_dit.DiffusionTransformer, zoo_dit.latents, BATCH),
    Entry("image-decoder", (1, 4, 64, 64), "f16", ImageDecoder, noise(), SMALL_SIDES),
    Entry("dcn-v2", (2048,), "f16", zoo_tables.CrossNetwork, zoo_tables.clicks, ROWS),
    Entry("mmoe", (2048,), "f16", lambda _: zoo_tables.Experts(), noise(512), ROWS),
    Entry("sasrec", (128, 200), "f16", zoo_tables.History, zoo_tables.sequences, (batch(128), tokens(200))),
    Entry("graph-attention", (64, 64), "f16", zoo_tables.GraphNetwork, zoo_tables.graphs, (batch(64),)),
    Entry(
        "pointnet",
        (32, 3, 1024),
        "f32",
        lively(lambda _: zoo_tables.PointNet(), (32, 3, 256)),
        noise(),
        (batch(32), Axis("points", range(64, 1025), 2)),
    ),
    Entry("nerf", (65_536,), "f16", zoo_tables.Field, noise(3), (batch(65_536, 64),)),
    Entry("patchtst", (32, 512, 7), "f16", zoo_series.PATCHES, noise(), BATCH),
    Entry("patchtsmixer", (32, 512, 7), "f32", zoo_series.MIXER, noise(), BATCH),
    Entry("tcn", (32, 512, 7), "f16", zoo_series.Temporal, noise(), (batch(32), tokens(512, 16))),
    *(
        Entry(one.name, one.shape, one.dtype, one.build, _tokens_of(one), axes)
        for families, axes in ((zoo_families.DECODERS, LONG), (zoo_families.ENCODERS, TEXT))
        for one in families
    ),
    *(Entry(one.name, one.shape, one.dtype, one.build, noise(), BATCH) for one in zoo_families.IMAGES),
    Entry("sew", (8, 80_000), "f16", zoo_families.SEW, noise(), HALVED_WAVES),
    Entry("conv-tasnet", (4, 32_000), "f32", zoo_separation.ConvTasNet, noise(), (batch(4),)),
    Entry("pairs", (1, 128), "bf16", zoo_pairs.Pairs, zoo_pairs.drawn, (batch(4),)),
    *UNTUNED,
)
"""The important ones first: a run that is short of time leaves the last."""

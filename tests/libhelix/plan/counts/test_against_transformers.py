"""The counts equal those of the transformers processors, over thousands of random shapes."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libhelix.plan.counts import audio, internvl, llava, qwen

from .shapes import many, outcome, rates, sides, totals

pytest.importorskip("transformers", reason="transformers, the independent oracle of the counts, is missing")
pytest.importorskip("torch", reason="the processors of transformers need torch")


def _module(name: str) -> Any:
    return importlib.import_module(f"transformers.models.{name}")


def _bare(cls: Any, **attributes: Any) -> Any:
    # Constructors ask for tokenizers and torchvision, which counting does not need.
    bare = cls.__new__(cls)
    for name, value in attributes.items():
        setattr(bare, name, value)
    return bare


QWEN = _module("qwen2_vl.image_processing_pil_qwen2_vl")
QWEN3 = _module("qwen3_vl.video_processing_qwen3_vl")
QWEN3_VIDEO = _bare(QWEN3.Qwen3VLVideoProcessor)
QWEN3_TEXT = _bare(_module("qwen3_vl.processing_qwen3_vl").Qwen3VLProcessor)
TILES = _bare(
    _module("got_ocr2.image_processing_pil_got_ocr2").GotOcr2ImageProcessorPil,
    size={"height": 448, "width": 448},
    crop_to_patches=True,
)
LLAVA = _bare(
    _module("llava_onevision.processing_llava_onevision").LlavaOnevisionProcessor,
    num_image_tokens=729,
    vision_feature_select_strategy="full",
    vision_aspect_ratio="anyres_max_9",
    image_processor=_module(
        "llava_onevision.image_processing_pil_llava_onevision"
    ).LlavaOnevisionImageProcessorPil,
)
Metadata = importlib.import_module("transformers.video_utils").VideoMetadata

limits = st.tuples(st.integers(1, 2_000_000), st.integers(0, 20_000_000)).map(lambda n: (n[0], n[0] + n[1]))


def _video_module(name: str) -> Any:
    pytest.importorskip("torchvision", reason="this video processor of transformers needs torchvision")
    return _module(name)


@many
@given(sides, sides, st.sampled_from([14, 28, 32]), limits)
def test_smart_resize(height: int, width: int, factor: int, limits: tuple[int, int]) -> None:
    ours = outcome(lambda: qwen.smart_resize(height, width, factor, *limits, "transformers"))
    assert ours == outcome(lambda: QWEN.smart_resize(height, width, factor, *limits))


@many
@given(sides, sides, st.sampled_from([("qwen2.5-vl", 14), ("qwen3-vl", 16)]))
def test_qwen_images(height: int, width: int, model: tuple[Any, int]) -> None:
    name, patch = model
    processor, options = _bare(QWEN.Qwen2VLImageProcessorPil), {"patch_size": patch}
    ours = outcome(lambda: qwen.image(height, width, model=name, policy="transformers").patches)
    assert ours == outcome(lambda: processor.get_number_of_image_patches(height, width, options))


@many
@given(sides, sides, st.integers(1, 800), st.booleans(), st.none() | limits)
def test_qwen3_videos(
    height: int, width: int, frames: int, cap: bool, limits: tuple[int, int] | None
) -> None:
    low, high = limits or (None, None)
    ours = outcome(
        lambda: (
            qwen.video(
                height,
                width,
                frames,
                model="qwen3-vl",
                policy="transformers",
                min_pixels=low,
                max_pixels=high,
                cap_pixels_per_frame=cap,
            ).patches
        )
    )
    options: dict[str, Any] = {"cap_pixels_per_frame": cap}
    if limits:
        options["size"] = {"shortest_edge": low, "longest_edge": high}
    assert ours == outcome(lambda: QWEN3_VIDEO.get_num_of_video_patches(frames, height, width, options))


@many
@given(totals, rates, st.none() | st.floats(0.1, 8))
def test_qwen3_frames(total: int, fps: float, rate: float | None) -> None:
    theirs = QWEN3_VIDEO.sample_frames(Metadata(total_num_frames=total, fps=fps), fps=rate).tolist()
    n = qwen.frame_count(total, fps, rate=rate or 2.0, model="qwen3-vl", policy="transformers")
    assert list(qwen.frame_indices(total, n, model="qwen3-vl", policy="transformers")) == theirs


@many
@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=9).map(sorted), rates)
def test_qwen3_timestamps(indices: list[int], fps: float) -> None:
    theirs = QWEN3_TEXT._calculate_timestamps(list(indices), fps)
    assert qwen.timestamp_texts(indices, fps) == tuple(f"<{t:.1f} seconds>" for t in theirs)


@many
@given(sides, sides, st.integers(1, 800), st.booleans(), st.none() | limits)
def test_qwen2_videos(
    height: int, width: int, frames: int, cap: bool, limits: tuple[int, int] | None
) -> None:
    module = _video_module("qwen2_vl.video_processing_qwen2_vl")
    torch = importlib.import_module("torch")
    low, high = limits or (None, None)
    default = module.Qwen2VLVideoProcessor.size
    size = module.SizeDict(
        shortest_edge=low or default["shortest_edge"], longest_edge=high or default["longest_edge"]
    )
    pixels = torch.empty(1).expand(1, frames, 3, height, width)

    def theirs() -> tuple[int, int]:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(module.BaseVideoProcessor, "resize", lambda _, size, **__: size)
            resized = _bare(module.Qwen2VLVideoProcessor).resize(
                pixels, size, None, factor=28, cap_pixels_per_frame=cap
            )
        return resized.height, resized.width

    def ours() -> tuple[int, int]:
        counts = qwen.video(
            height,
            width,
            frames,
            policy="transformers",
            min_pixels=low,
            max_pixels=high,
            cap_pixels_per_frame=cap,
        )
        return counts.height, counts.width

    assert outcome(ours) == outcome(theirs)


@many
@given(totals, rates, st.floats(0.1, 8), st.none() | st.integers(1, 900))
def test_qwen2_frames(total: int, fps: float, rate: float, frames: int | None) -> None:
    module = _video_module("qwen2_vl.video_processing_qwen2_vl")
    processor = _bare(module.Qwen2VLVideoProcessor, fps=None, num_frames=None)

    def ours() -> list[int]:
        n = qwen.frame_count(total, fps, rate=rate, frames=frames, policy="transformers")
        return list(qwen.frame_indices(total, n, policy="transformers"))

    def theirs() -> list[int]:
        given = {"fps": rate} if frames is None else {"num_frames": frames}
        indices = processor.sample_frames(Metadata(total_num_frames=total, fps=fps), **given).tolist()
        return [i for i in indices if i < total]  # one past the end, where its division rounds up

    assert outcome(ours) == outcome(theirs)


@many
@given(sides, sides, st.integers(1, 5), st.integers(0, 35))
def test_internvl_tiles(height: int, width: int, least: int, more: int) -> None:
    options = {"min_patches": least, "max_patches": least + more}
    ours = internvl.image(height, width, min_tiles=least, max_tiles=least + more)
    assert ours.tiles == TILES.get_number_of_image_patches(height, width, options)


@many
@given(totals, st.integers(1, 128))
def test_internvl_frames(total: int, count: int) -> None:
    processor = _bare(_video_module("internvl.video_processing_internvl").InternVLVideoProcessor)
    ours = outcome(lambda: list(internvl.transformers_frames(total, count)))
    metadata = Metadata(total_num_frames=total, fps=30)
    assert ours == outcome(lambda: processor.sample_frames(metadata, num_frames=count).tolist())


@many
@given(sides, sides)
def test_llava_images(height: int, width: int) -> None:
    assert llava.anyres(height, width).tokens == LLAVA._get_number_of_features(height, width, 384, 384)


@many
@given(st.integers(1, 1000))
def test_llava_videos(frames: int) -> None:
    counted = LLAVA._get_num_multimodal_tokens(video_sizes=[(frames, 384, 384)])
    assert [llava.video_tokens(frames)] == counted["num_video_tokens"]


@pytest.mark.parametrize("samples", [1, 159, 160, 161, 16_000, 100_001, 479_999, 480_000, 480_001, 700_000])
def test_mel_frames(samples: int) -> None:
    numpy = importlib.import_module("numpy")
    extractor = _module("whisper.feature_extraction_whisper").WhisperFeatureExtractor()
    features = extractor(
        numpy.zeros(samples, numpy.float32),
        sampling_rate=16_000,
        return_attention_mask=True,
        padding="max_length",
    )
    assert audio.qwen2_audio(samples).mel_frames == int(features["attention_mask"].sum())


@many
@given(st.integers(1, 480_000))
def test_audio_tokens(samples: int) -> None:
    cls = _module("qwen2_audio.modeling_qwen2_audio").Qwen2AudioEncoder
    counts = audio.qwen2_audio(samples)
    lengths = cls._get_feat_extract_output_lengths(None, counts.mel_frames)
    assert (counts.encoder_frames, counts.tokens) == lengths

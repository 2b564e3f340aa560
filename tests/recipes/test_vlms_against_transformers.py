"""InternVL, LLaVA-OneVision and Qwen2-Audio give what the processors of transformers give, over hundreds of
random conversations: tokens exactly, pixels within one level of 255, spectrograms within 1e-4. And the models
take it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image as Pil

import libhelix as hx
from libhelix.recipes import Audio, InternVL, LlavaOneVision, Qwen2Audio
from tests.clips import make_clip
from tests.reference import decode_all
from tests.sounds import tones, write_wav
from tests.vlms import (
    INTERNVL,
    LLAVA,
    QWEN2_AUDIO,
    Array,
    checkpoint,
    filled,
    need_torchvision,
    rows_first,
    sample_of,
)

transformers = pytest.importorskip("transformers", reason="transformers, the independent oracle, is missing")
need_torchvision()

WORDS = ["a", "cat,", "the", "mat;", "What?", "Äpfel", "北京", "😺", "<b>", "naïve\ttab", "12.5%", "don't"]
RAW = {"do_rescale": False, "do_normalize": False}


class Part(NamedTuple):
    """Of a turn: a text, or a medium by its path."""

    kind: str
    said: str = ""
    path: Path = Path()


class Turn(NamedTuple):
    role: str
    parts: tuple[Part, ...]


class Talks:
    """Random conversations, and the media that they are about."""

    def __init__(self, folder: Path, media: dict[str, list[Path]], most: int, seed: int) -> None:
        self._folder, self._media, self._most = folder, media, most
        self._rng = np.random.default_rng(seed)

    def one(self) -> tuple[hx.Sample, list[dict[str, Any]], dict[str, list[Path]]]:
        """The sample, the messages for the processor, and the media in the order of the text."""
        left = int(self._rng.integers(0, self._most + 1))
        turns = [Turn("system", (self._text(),))] if self._rng.random() < 0.3 else []
        for _ in range(self._rng.integers(1, 4)):
            here = int(self._rng.integers(0, left + 1))
            left -= here
            turns += [Turn("user", tuple(self._asked(here))), Turn("assistant", (self._text(),))]
        listed = bool(self._rng.random() < 0.5)
        shown = [part for turn in turns for part in turn.parts if part.kind != "text"]
        used = {kind: [part.path for part in shown if part.kind == kind] for kind in self._media}
        said = [self._list(turn) if listed else self._line(turn) for turn in turns]
        sample = sample_of(self._folder, said, *(part.path for part in shown))
        return sample, [self._list(turn) for turn in turns], used

    def _asked(self, count: int) -> Iterator[Part]:
        """Media and texts, no two texts beside each other."""
        if count and self._rng.random() < 0.3:
            yield self._text()
        for left in range(count, 0, -1):
            kind = str(self._rng.choice(list(self._media)))
            yield Part(kind, path=self._media[kind][self._rng.integers(len(self._media[kind]))])
            if left > 1 and self._rng.random() < 0.5:
                yield self._text()
        yield self._text()

    def _text(self) -> Part:
        return Part("text", " ".join(self._rng.choice(WORDS, self._rng.integers(1, 9))))

    @staticmethod
    def _list(turn: Turn) -> dict[str, Any]:
        content = [
            {"type": "text", "text": part.said} if part.kind == "text" else {"type": part.kind}
            for part in turn.parts
        ]
        return {"role": turn.role, "content": content}

    @staticmethod
    def _line(turn: Turn) -> tuple[str, str]:
        said = (part.said if part.kind == "text" else f"<{part.kind}>\n" for part in turn.parts)
        return {"user": "human", "assistant": "gpt"}.get(turn.role, turn.role), "".join(said)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("oracle")


@pytest.fixture(scope="module")
def seen(folder: Path) -> dict[str, list[Path]]:
    rng = np.random.default_rng(5)
    pictures = []
    for i in range(24):
        height, width = (int(n) for n in rng.integers(4, 640, 2))
        coarse = rng.integers(0, 256, (height // 9 + 1, width // 9 + 1, 3), np.uint8)
        coarse = coarse.repeat(9, axis=0).repeat(9, axis=1)[:height, :width]
        pictures.append(folder / f"{i}.png")
        Pil.fromarray(coarse ^ rng.integers(0, 32, coarse.shape, np.uint8)).save(pictures[-1])
    sizes = [(96, 192), (200, 120), (64, 64)]
    films = [make_clip(folder / f"{i}.mp4", 10 + 17 * i, size=size) for i, size in enumerate(sizes)]
    return {"image": pictures, "video": films}


def tokenizer_of(path: str, **names: str) -> Any:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=f"{path}/tokenizer.json",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=names,
    )


def made(module: str, name: str, **settings: Any) -> Any:
    return getattr(importlib.import_module(f"transformers.models.{module}"), name)(**settings)


def opened(paths: list[Path]) -> list[Any]:
    return [Pil.open(path) for path in paths]


def frames_of(path: Path, chosen: tuple[int, ...]) -> Array:
    decoded = decode_all(path)
    return np.stack([decoded[frame].to_ndarray(format="rgb24") for frame in chosen])


@pytest.fixture(autouse=True)
def before_pillow_13(monkeypatch: pytest.MonkeyPatch) -> None:
    rows_first(monkeypatch)


def close(ours: Array, theirs: Any, *, pil: bool) -> None:
    """Bit for bit what Pillow scaled, and within two levels what torchvision did, almost everywhere one."""
    theirs = np.asarray(theirs)
    assert ours.shape == theirs.shape
    difference = np.abs(ours.astype(int) - theirs.astype(int))
    if ours.size:
        assert difference.max() <= (0 if pil else 2)
        assert (difference > 1).mean() < 1e-4


@pytest.mark.parametrize("pil", [True, False])
def test_internvl(folder: Path, seen: dict[str, list[Path]], pil: bool) -> None:
    path = checkpoint(folder / f"internvl{pil}", INTERNVL)
    recipe = InternVL(
        path, policy="transformers", max_tiles=4, frames="processor", max_frames=3, min_frames=1
    )
    size = {"height": 448, "width": 448}
    home = "got_ocr2.image_processing_pil_got_ocr2" if pil else "got_ocr2.image_processing_got_ocr2"
    name = "GotOcr2ImageProcessorPil" if pil else "GotOcr2ImageProcessor"
    processor = made(
        "internvl.processing_internvl",
        "InternVLProcessor",
        image_processor=made(home, name, size=size, max_patches=4, crop_to_patches=True, **RAW),
        video_processor=made(
            "internvl.video_processing_internvl", "InternVLVideoProcessor", size=size, **RAW
        ),
        tokenizer=tokenizer_of(
            path,
            start_image_token="<img>",
            end_image_token="</img>",
            context_image_token="<IMG_CONTEXT>",
            video_token="<video>",
        ),
        chat_template=INTERNVL,
    )
    talks = Talks(folder, seen, 3, seed=int(pil))
    for _ in range(100):
        sample, messages, used = talks.one()
        desc, out = filled(recipe, sample)
        films = [p.frames for p in desc.draws.pieces if p.frames]
        videos = [frames_of(path, chosen) for path, chosen in zip(used["video"], films)]
        # The processor takes videos of one length at a time: all have three frames here.
        theirs = processor(
            text=[processor.apply_chat_template(messages)],
            images=opened(used["image"]) or None,
            videos=videos or None,
            return_tensors="pt",
        )
        assert out["input_ids"].tolist() == theirs["input_ids"][0].tolist()
        assert len(out["image_flags"]) == len(out["pixel_values"])
        at = 0
        for piece in desc.draws.pieces:
            rows = slice(at, at + piece.rows)
            rows_theirs = np.stack([np.asarray(one) for one in theirs["pixel_values"][rows]])
            close(out["pixel_values"][rows], rows_theirs, pil=pil and not piece.frames)
            at += piece.rows
        assert at == len(theirs.get("pixel_values", ()))


@pytest.mark.parametrize("pil", [True, False])
def test_llava_onevision(folder: Path, seen: dict[str, list[Path]], pil: bool) -> None:
    path = checkpoint(folder / f"llava{pil}", LLAVA)
    recipe = LlavaOneVision(path, max_frames=3, force=True)
    home = f"llava_onevision.image_processing_{'pil_' if pil else ''}llava_onevision"
    mean = [0.5, 0.4, 0.3]
    processor = made(
        "llava_onevision.processing_llava_onevision",
        "LlavaOnevisionProcessor",
        image_processor=made(home, f"LlavaOnevisionImageProcessor{'Pil' * pil}", image_mean=mean, **RAW),
        video_processor=made(
            "llava_onevision.video_processing_llava_onevision", "LlavaOnevisionVideoProcessor", **RAW
        ),
        tokenizer=tokenizer_of(path, image_token="<image>", video_token="<video>"),
        num_image_tokens=729,
        vision_feature_select_strategy="full",
        chat_template=LLAVA,
    )
    talks = Talks(folder, seen, 3, seed=10 + pil)
    for _ in range(100):
        sample, messages, used = talks.one()
        desc, out = filled(recipe, sample)
        videos = [frames_of(path, p.frames) for path, p in zip(used["video"], desc.draws.videos)]
        theirs = processor(
            text=[processor.apply_chat_template(messages)],
            images=[opened(used["image"])] if used["image"] else None,
            videos=videos or None,
        )
        assert out["input_ids"].tolist() == theirs["input_ids"][0]
        assert out["batch_num_images"] == len(used["image"])
        assert out["num_frames"].tolist() == [3] * len(videos)
        if used["image"]:
            crops = np.concatenate([np.asarray(one) for one in theirs["pixel_values"]])
            close(out["pixel_values"], crops, pil=pil)
            assert out["image_sizes"].tolist() == [list(map(int, size)) for size in theirs["image_sizes"]]
            assert theirs["batch_num_images"] == [len(used["image"])]
        if videos:
            frames = np.concatenate([np.asarray(one) for one in theirs["pixel_values_videos"]])
            close(out["pixel_values_videos"], frames, pil=False)
            scaled = [
                Pil.fromarray(one).resize((384, 384), Pil.Resampling.BICUBIC)
                for film in videos
                for one in film
            ]
            close(
                out["pixel_values_videos"],
                np.stack(list(map(np.asarray, scaled))).transpose(0, 3, 1, 2),
                pil=True,
            )


@pytest.fixture(scope="module")
def heard(folder: Path) -> dict[str, list[Path]]:
    rng = np.random.default_rng(6)
    lengths = [0.05, 0.3, 1.0, 2.7, 9.3, 29.99, 30.0, 31.0]
    sounds = []
    for i, seconds in enumerate(lengths):
        rate = int(rng.choice([8_000, 16_000, 44_100]))
        sounds.append(write_wav(folder / f"{i}.wav", tones(seconds, rate), rate))
    return {"audio": sounds}


def decoded(path: Path) -> Array:
    """As the recipe Audio has it."""
    from libhelix.media import probe_items
    from libhelix.recipe import Part as Whole
    from libhelix.recipe import Rng

    sample = hx.Sample(0, path.name, tuple(probe_items(path)))
    desc = Audio().describe(sample, Rng(0, 0, 0))
    out = np.empty(desc.fields[0].shape, np.float32)
    Audio().fill(sample, desc, Whole(0, 1, 1), {"audio": out})
    return out


def test_qwen2_audio(folder: Path, heard: dict[str, list[Path]]) -> None:
    path = checkpoint(folder / "audio", QWEN2_AUDIO)
    recipe = Qwen2Audio(path)
    extractor = transformers.WhisperFeatureExtractor(feature_size=128)
    # In double precision, as the published features were defined; torch's path is of single.
    extractor._torch_extract_fbank_features = extractor._np_extract_fbank_features
    processor = made(
        "qwen2_audio.processing_qwen2_audio",
        "Qwen2AudioProcessor",
        feature_extractor=extractor,
        tokenizer=tokenizer_of(path),
        chat_template=QWEN2_AUDIO,
    )
    sounds = {one: decoded(one) for one in heard["audio"]}
    features: dict[Path, Array] = {}
    talks = Talks(folder, heard, 3, seed=20)
    for _ in range(200):
        sample, messages, used = talks.one()
        _, out = filled(recipe, sample)
        if used["audio"] and not all(one in features for one in used["audio"]):
            theirs = processor(
                text=[processor.apply_chat_template(messages)],
                audio=[sounds[one] for one in used["audio"]],
                sampling_rate=16_000,
            )
            features.update(zip(used["audio"], theirs["input_features"]))
            masks = np.stack(theirs["feature_attention_mask"])
            np.testing.assert_array_equal(out["feature_attention_mask"], masks)
            assert out["input_ids"].tolist() == theirs["input_ids"][0]
        for ours, one in zip(out["input_features"], used["audio"]):
            assert np.abs(ours - features[one]).max() < 1e-4
        assert out["input_ids"].tolist() == expanded(processor, messages, used["audio"], sounds)


def expanded(processor: Any, messages: Any, used: list[Path], sounds: dict[Path, Array]) -> list[int]:
    """The processor's text with as many tokens for each sound as it counts, by its tokenizer."""
    text = processor.apply_chat_template(messages)
    for one in used:
        frames = min(-(-len(sounds[one]) // 160), 3000)
        count = (((frames - 1) // 2 + 1) - 2) // 2 + 1
        text = text.replace("<|AUDIO|>", "<|mark|>" * count, 1)
    ids: list[int] = processor.tokenizer(text.replace("<|mark|>", "<|AUDIO|>"))["input_ids"]
    return ids

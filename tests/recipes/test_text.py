"""Text: tokens as fields, exact where the index counted them, else within a bound."""

from __future__ import annotations

import builtins
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libhelix.errors import MediaError, RecipeError, UsageError
from libhelix.index.build import build
from libhelix.index.read import Index
from libhelix.media.tokenizer import Tokenizer, tokenizer
from libhelix.recipe import Descriptor, Pack, Pad, Part, Ragged, Rng, Sample, check_descriptor
from libhelix.recipes import Text
from tests import stored

RNG = Rng(0, 0, 0)
TEXTS = {"a": "the cat", "b": "", "c": " \n\t", "d": "süß 日本語 the cat sat on the mat" * 3}

pytest.importorskip("tokenizers", reason="needs the extra text")


def letters(text: str) -> list[int]:
    """A tokenizer of one's own."""
    return [ord(c) for c in text]


def nonsense(text: str) -> Any:
    """None."""
    return [[0.5], [1.5]]


def many(text: str) -> list[int]:
    """More tokens than bytes."""
    return [1] * (len(text.encode()) + 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    stored.make_tokenizer(folder / "tokenizer.json")
    stored.make_tokenizer(folder / "other.json", vocabulary=262)
    (folder / "texts").mkdir()
    for name, content in TEXTS.items():
        (folder / "texts" / f"{name}.txt").write_text(content)
    build([folder / "texts"], folder / "plain.arrow")
    build([folder / "texts"], folder / "counted.arrow", tokenizer=folder / "tokenizer.json")
    return folder


def fill(recipe: Text, sample: Sample, desc: Descriptor | None = None) -> tuple[Descriptor, Any]:
    desc = check_descriptor(desc or recipe.describe(sample, RNG), "Text")
    out = {f.name: np.full(f.shape, 77, np.int64) for f in desc.fields}
    shapes = recipe.fill(sample, desc, Part(0, 1, 1), out)
    assert shapes is not None
    assert shapes["input_ids"] == shapes["labels"]
    (n,) = shapes["input_ids"]
    assert (out["input_ids"][:n] == out["labels"][:n]).all()
    assert (out["labels"][n:] == 77).all()
    return desc, out["input_ids"][:n].tolist()


def expected(folder: Path, text: str, most: int | None = None, special: bool = True) -> Any:
    from tokenizers import Tokenizer as Library

    made = Library.from_file(str(folder / "tokenizer.json"))
    made.no_padding()
    made.no_truncation()
    if most is not None:
        made.enable_truncation(most)
    return made.encode(text, add_special_tokens=special).ids


@pytest.mark.parametrize("layout", ["pad", "pack", "ragged"])
@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("most", [None, 3, 4, 1000])
def test_counted_texts_have_exact_shapes(folder: Path, layout: Any, special: bool, most: int | None) -> None:
    recipe = Text(
        tokenizer=str(folder / "tokenizer.json"), layout=layout, add_special=special, max_tokens=most
    )
    for sample in Index.open(folder / "counted.arrow"):
        desc, ids = fill(recipe, sample)
        assert ids == expected(folder, TEXTS[sample.key[0]], most, special)
        assert desc.fields[0].shape == (len(ids),)
        assert desc.costs == {"tokens": len(ids), "targets": len(ids)}


@pytest.mark.parametrize("layout", ["pad", "ragged"])
def test_uncounted_texts_are_bounded_by_their_bytes(folder: Path, layout: Any) -> None:
    recipe = Text(tokenizer=str(folder / "tokenizer.json"), layout=layout)
    for sample in Index.open(folder / "plain.arrow"):
        desc, ids = fill(recipe, sample)
        assert ids == expected(folder, TEXTS[sample.key[0]])
        assert desc.costs == {"tokens": sample.items[0].size + 3}
        assert len(ids) <= desc.costs["tokens"]
        assert all(f.bounded for f in desc.fields)


def test_the_layout_pads_ids_and_labels_each_with_their_own(folder: Path) -> None:
    sample = Index.open(folder / "counted.arrow")[0]
    for layout, made in [
        ("pad", [Pad(9), Pad(-100)]),
        ("pack", [Pack(counts="tokens", value=9), Pack(counts="tokens", value=-100)]),
        ("ragged", [Ragged(), Ragged()]),
    ]:
        recipe = Text(tokenizer=str(folder / "tokenizer.json"), layout=layout, pad=9)  # type: ignore[arg-type]
        assert [f.layout for f in recipe.describe(sample, RNG).fields] == made


def test_packs_need_counts_of_the_same_tokenizer(folder: Path) -> None:
    mine = Text(tokenizer=str(folder / "tokenizer.json"), layout="pack")
    with pytest.raises(
        RecipeError, match=r"were not counted: helixctl index .* --tokenizer .*tokenizer\.json"
    ):
        mine.describe(Index.open(folder / "plain.arrow")[0], RNG)
    other = msgspec.structs.replace(mine, tokenizer=str(folder / "other.json"))
    with pytest.raises(RecipeError, match=r"by another tokenizer: helixctl index .*other\.json"):
        other.describe(Index.open(folder / "counted.arrow")[0], RNG)
    padded = msgspec.structs.replace(other, layout="pad")
    assert "targets" not in padded.describe(Index.open(folder / "counted.arrow")[0], RNG).costs


def test_shrinking_cuts_to_the_cap(folder: Path) -> None:
    recipe = Text(tokenizer=str(folder / "tokenizer.json"), layout="pack", max_tokens=20)
    sample = Index.open(folder / "counted.arrow")[3]
    smaller = recipe.shrink(sample, RNG, {"tokens": 7})
    assert smaller is not None
    assert smaller.costs == {"tokens": 7, "targets": 7}
    assert fill(recipe, sample, smaller)[1] == expected(folder, TEXTS["d"], 7)
    assert recipe.shrink(sample, RNG, {"tokens": 2}) is None
    assert recipe.shrink(sample, RNG, {"patches": 2}) is None


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=40), st.booleans(), st.integers(3, 12) | st.none())
def test_tokens_are_those_of_the_library(folder: Path, text: str, special: bool, most: int | None) -> None:
    mine = tokenizer(str(folder / "tokenizer.json"))
    assert mine.encode(text, special=special, most=most) == expected(folder, text, most, special)
    assert mine.count([text]) == [len(mine.encode(text, special=False, most=None))]


def test_a_function_of_ones_own_tokenizes(folder: Path) -> None:
    for sample in Index.open(folder / "counted.arrow"):
        desc, ids = fill(Text(function=f"{__name__}:letters", max_tokens=5), sample)
        assert ids == letters(TEXTS[sample.key[0]])[:5]
        assert desc.costs["tokens"] <= 5


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("nonsense", RecipeError, r"returned float64 \(2, 1\), not a list of integers"),
        ("many", MediaError, "9 tokens of 7 bytes, more than one each; set max_tokens"),
        ("TEXTS", RecipeError, "cannot be called"),
        ("missing", RecipeError, "cannot be imported: AttributeError"),
    ],
)
def test_a_function_that_gives_no_tokens_is_named(
    folder: Path, name: str, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        fill(Text(function=f"{__name__}:{name}"), Index.open(folder / "plain.arrow")[0])


def test_a_text_chosen_by_name(folder: Path) -> None:
    (first, _, _, second) = [sample.items[0] for sample in Index.open(folder / "plain.arrow")]
    named = (msgspec.structs.replace(first, name="title"), msgspec.structs.replace(second, name="caption"))
    sample = Sample(0, "x", named)
    assert fill(Text(function=f"{__name__}:letters", name="caption"), sample)[1] == letters(TEXTS["d"])
    with pytest.raises(MediaError, match="needs an item of kind text 'summary'"):
        Text(function=f"{__name__}:letters", name="summary").describe(sample, RNG)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({}, "exactly one of"),
        ({"tokenizer": "x", "function": "a:b"}, "exactly one of"),
        ({"tokenizer": "/nowhere/tokenizer.json"}, "no such file"),
        ({"function": "letters"}, "write module:callable"),
        ({"function": "a:b", "layout": "pack"}, "cannot be packed"),
        ({"function": "a:b", "layout": "stack"}, '"pad", "pack" or "ragged"'),
        ({"function": "a:b", "max_tokens": 0}, "integer of 1 or more"),
    ],
)
def test_wrong_parameters_say_what_to_write(parameters: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Text(**parameters)


def test_limits_that_special_tokens_fill_are_the_recipes_fault(folder: Path) -> None:
    recipe = Text(tokenizer=str(folder / "tokenizer.json"), max_tokens=2)
    with pytest.raises(RecipeError, match="adds 2 special tokens; allow more"):
        recipe.describe(Index.open(folder / "plain.arrow")[0], RNG)


def test_a_tokenizer_is_found_from_where_workers_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    recipe = Text(tokenizer="tokenizer.json")
    monkeypatch.chdir("/")
    again = msgspec.json.decode(msgspec.json.encode(recipe), type=Text)
    assert again == recipe
    assert again.tokenizer == os.fspath(folder / "tokenizer.json")


def test_without_the_library_the_cure_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def hidden(name: str, *rest: Any, **more: Any) -> Any:
        if name == "tokenizers":
            raise ImportError("No module named 'tokenizers'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", hidden)
    with pytest.raises(UsageError, match=r"pip install 'datahelix\[text\]'"):
        Tokenizer(str(folder / "tokenizer.json")).count([])


def test_a_file_that_is_no_tokenizer_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    recipe = Text(tokenizer=str(tmp_path / "config.json"))
    with pytest.raises(RecipeError, match=r"config\.json: no tokenizer\.json that this version reads"):
        recipe.describe(Index.open(folder / "plain.arrow")[0], RNG)
    with pytest.raises(UsageError, match=r"config\.json: no tokenizer\.json"):
        build([folder / "texts"], tmp_path / "x.arrow", tokenizer=tmp_path / "config.json")
    with pytest.raises(UsageError, match=r"No such file.*give the path of a model's"):
        build([folder / "texts"], tmp_path / "x.arrow", tokenizer=tmp_path / "missing.json")


def test_a_text_that_was_rewritten_is_not_cut_to_the_old_count(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat")
    build([tmp_path / "a.txt"], tmp_path / "x.arrow", tokenizer=folder / "tokenizer.json")
    (sample,) = Index.open(tmp_path / "x.arrow")
    recipe = Text(tokenizer=str(folder / "tokenizer.json"), layout="pack")
    unchecked = msgspec.structs.replace(sample.items[0], mtime_ns=0)
    (tmp_path / "a.txt").write_text("xyzwxyz")
    with pytest.raises(MediaError, match="tokens, 4 by the index; run helixctl index again"):
        fill(recipe, Sample(0, "a.txt", (unchecked,)))


def test_the_index_tells_which_tokenizer_counted(folder: Path) -> None:
    plain, counted = Index.open(folder / "plain.arrow"), Index.open(folder / "counted.arrow")
    assert plain.tokenizer == ""
    assert counted.tokenizer == tokenizer(str(folder / "tokenizer.json")).fingerprint
    assert plain.fingerprint != counted.fingerprint
    for a, b in zip(plain, counted, strict=True):
        assert a.items[0].text is not None
        assert b.items[0].text is not None
        assert (a.items[0].text.tokens, a.items[0].text.tokenizer) == (-1, "")
        assert b.items[0].text.tokens == len(expected(folder, TEXTS[b.key[0]], special=False))
        assert b.items[0].text.tokenizer == counted.tokenizer

"""Together: several recipes over one sample, as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from libhelix.errors import MediaError, RecipeError, RecipeNotImportable, UsageError
from libhelix.loader import recipe_spec
from libhelix.media import probe_items
from libhelix.recipe import Descriptor, Field, Pack, Part, Ragged, Recipe, Rng, Sample, check_descriptor
from libhelix.recipes import Clip, Tensor, Text, Together
from libhelix.recipes.run import load_recipe
from tests import stored
from tests.clips import make_clip
from tests.recipes.test_tensor import fill
from tests.system.recipes import Drawn, Shrinking, Tokens

RNG = Rng(0, 0, 0)
LATENT = stored.array("float16", (6, 3))


def letters(text: str) -> list[int]:
    """A tokenizer."""
    return [ord(c) for c in text]


CAPTION = Text(function=f"{__name__}:letters", max_tokens=8, layout="ragged")


class Grouped(Recipe, frozen=True):
    """A field of its own name, in a group."""

    name: str
    group: str = ""

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        fields = (Field(self.name, "int64", (rng.integers(1, 100),), Ragged()), Field("y", "uint8", ()))
        return Descriptor(fields=fields, group=self.group)


class Stubborn(Recipe, frozen=True):
    """Nine tokens, asked for fewer too."""

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        return Descriptor(fields=(Field("x", "uint8", (9,)),), costs={"tokens": 9})

    def shrink(self, sample: Sample, rng: Rng, caps: Mapping[str, int]) -> Descriptor | None:
        return self.describe(sample, rng)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """A video, its caption and its latent."""
    folder = tmp_path_factory.mktemp("together")
    make_clip(folder / "a.mp4", 60, gop=12)
    (folder / "a.txt").write_text("a caption")
    stored.write_safetensors(folder / "a.safetensors", {"latent": ("float16", LATENT)})
    items = [item for path in sorted(folder.iterdir()) for item in probe_items(path)]
    return Sample(0, "a", tuple(items))


def test_a_sample_of_several_items_fills_one_batch(sample: Sample) -> None:
    recipe = Together(latent=Tensor(layout="pack"), caption=CAPTION, video=Clip(frames=12, size=(32, 32)))
    desc = check_descriptor(recipe.describe(sample, RNG), "Together")
    clip = Clip(frames=12, size=(32, 32)).describe(sample, RNG)
    assert {f.name: (f.shape, f.rows_per_unit) for f in desc.fields} == {
        "latent": ((6, 3), 0),
        "caption_input_ids": ((8,), 0),
        "caption_labels": ((8,), 0),
        "video": ((12, 32, 32, 3), 1),
    }
    assert (desc.units, desc.cuts, desc.kind, desc.threads) == (12, clip.cuts, "h264", True)
    assert desc.segment_us[1:] == clip.segment_us[1:]
    assert desc.segment_us[0] > clip.segment_us[0]
    assert sum(desc.segment_us) == sum(
        sum(d.segment_us) for d in (clip, Tensor().describe(sample, RNG), CAPTION.describe(sample, RNG))
    )
    assert desc.costs["tokens"] == 6 + 8 + clip.costs["tokens"]
    assert desc.costs["frames"] == 12
    _, out = fill(recipe, sample)
    assert len(desc.cuts) >= 2
    np.testing.assert_array_equal(out["latent"], LATENT)
    assert out["caption_input_ids"].tolist() == letters("a captio")
    np.testing.assert_array_equal(out["video"], fill(Clip(frames=12, size=(32, 32)), sample)[1]["video"])


def test_packed_fields_count_their_own_part_of_a_sum(sample: Sample) -> None:
    both = Together(one=Tensor(layout="pack"), other=Tokens()).describe(sample, RNG)
    assert both.costs["tokens"] == 6 + both.costs["other_tokens"]
    assert [f.layout.counts for f in both.fields if isinstance(f.layout, Pack)][:2] == [
        "one_tokens",
        "other_tokens",
    ]
    check_descriptor(both, "Together")
    desc = Together(one=Tensor(layout="pack")).describe(sample, RNG)
    assert desc.costs == {"tokens": 6}
    assert desc.fields[0].layout == Pack(counts="tokens")


def test_only_one_member_is_filled_in_parts_whichever_comes_first(sample: Sample) -> None:
    tensors = Together(a=Tensor(), b=Tensor()).describe(sample, RNG)
    assert [f.rows_per_unit for f in tensors.fields] == [1, 0]
    captions = Together(a=CAPTION).describe(sample, RNG)
    assert (captions.units, captions.cuts) == (1, ())
    for recipe in (Together(a=Tensor(), b=Tensor()), Together(a=CAPTION, b=Tensor())):
        desc, out = fill(recipe, sample, (0, 1, 4, 6))
        for f in desc.fields:
            if f.shape == LATENT.shape:
                np.testing.assert_array_equal(out[f.name], LATENT)


def test_true_shapes_of_bounded_fields_are_given_by_the_names_of_all(sample: Sample) -> None:
    recipe = Together(short=Text(function=f"{__name__}:letters"), latent=Tensor())
    desc = recipe.describe(sample, RNG)
    out: dict[str, Any] = {f.name: np.zeros(f.shape, f.dtype) for f in desc.fields}
    shapes = recipe.fill(sample, desc, Part(0, 2, 6), {**out, "latent": out["latent"][:2]})
    assert shapes == {"short_input_ids": (9,), "short_labels": (9,)}
    assert desc.fields[0].shape == (10,)
    assert recipe.fill(sample, desc, Part(2, 6, 6), {"latent": out["latent"][2:]}) == {}


def test_what_one_draws_does_not_change_what_others_draw(sample: Sample) -> None:
    def drawn(**recipes: Recipe) -> Any:
        return Together(**recipes).describe(sample, Rng(1, 2, 3)).draws[1].draws

    first = drawn(a=Tensor(), b=Drawn())
    assert first == drawn(a=Drawn(), b=Drawn())
    assert first == drawn(a=Tensor(), b=Drawn(), c=Drawn())
    assert Together(a=Tensor(), b=Drawn()).describe(sample, Rng(1, 2, 4)).draws[1].draws != first


def test_it_shrinks_by_the_first_member_that_makes_it_fit(sample: Sample) -> None:
    video = Clip(rate=25.0, size=(32, 32), layout="pack")
    recipe = Together(latent=Tensor(layout="pack"), caption=CAPTION, video=video)
    whole = recipe.describe(sample, RNG).costs["tokens"]
    desc = recipe.shrink(sample, Rng(0, 0, 0), {"tokens": 30})
    assert desc is not None
    assert whole > 30 >= desc.costs["tokens"] > 24
    check_descriptor(desc, "Together")
    _, out = fill(recipe, sample)
    assert len(out["video"]) == 60
    assert recipe.shrink(sample, Rng(0, 0, 0), {"tokens": 7}) is None
    stubborn = Together(a=Stubborn(), caption=CAPTION)
    desc = stubborn.shrink(sample, Rng(0, 0, 0), {"tokens": 12})
    assert desc is not None
    assert desc.costs["tokens"] == 12
    assert desc.draws[0].costs == {"tokens": 9}
    drawn = Together(a=Shrinking(), b=Shrinking())
    before = drawn.describe(sample, Rng(5, 0, 0))
    after = drawn.shrink(sample, Rng(5, 0, 0), {"tokens": before.costs["tokens"] - 1})
    if after is not None:  # both may be of one token
        assert after.draws[1] == before.draws[1]
        assert after.draws[0].draws == before.draws[0].draws[:-1]


def test_groups_are_joined_and_names_that_collide_are_refused(sample: Sample) -> None:
    desc = Together(a=Grouped("x", "tall"), b=Grouped("x"), c=Grouped("x", "long")).describe(sample, RNG)
    assert desc.group == "tall, long"
    with pytest.raises(RecipeError, match="two recipes give a field 'a_b_x'; choose other keywords"):
        Together(a=Grouped("b_x"), a_b=Grouped("x")).describe(sample, RNG)


def test_a_members_fault_is_told_as_its_own(sample: Sample) -> None:
    with pytest.raises(RecipeError, match=r"Together\(b=Grouped\(...\)\).describe gave the field 'y' twice"):
        Together(a=Tensor(), b=Grouped("y")).describe(sample, RNG)


def test_a_sample_without_one_of_the_items_is_named(sample: Sample) -> None:
    recipe = Together(latent=Tensor(), caption=CAPTION)
    for missing in ("tensor", "text"):
        items = tuple(item for item in sample.items if item.kind != missing)
        with pytest.raises(MediaError, match=r"b: .*(array|text)"):
            recipe.describe(Sample(1, "b", items), RNG)


def test_it_travels_to_workers_as_json(sample: Sample) -> None:
    recipe = Together(
        inner=Together(latent=Tensor(layout={"latent": "pad"}, pad=1)),
        video=Clip(rate=2, size=(8, 8), layout="pad"),
    )
    spec = recipe_spec(recipe, importable=True)
    again = load_recipe(spec)
    assert again == recipe
    assert recipe_spec(again, importable=True) == spec
    assert again.describe(sample, Rng(0, 0, 0)) == recipe.describe(sample, Rng(0, 0, 0))
    members = msgspec.json.decode(spec.params)["members"]
    assert (members["video"]["module"], members["video"]["qualname"]) == ("libhelix.recipes.clip", "Clip")


def test_what_is_no_recipe_is_refused() -> None:
    with pytest.raises(UsageError, match="needs recipes, such as"):
        Together()
    with pytest.raises(UsageError, match=r"Together\(video='x'\) is no libhelix.Recipe"):
        Together(video="x")  # type: ignore[arg-type]


def test_a_members_class_that_workers_cannot_import_ends_the_job_at_once(sample: Sample) -> None:
    class Local(Recipe, frozen=True):
        def describe(self, sample: Sample, rng: Rng) -> Descriptor:
            return Descriptor(fields=(Field("x", "uint8", ()),))

        def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, Any]) -> None:
            out["x"][...] = 1

    recipe = Together(mine=Local())
    assert recipe.describe(sample, RNG).fields[0].name == "mine"  # inline, where it was made
    spec = recipe_spec(recipe, importable=True)
    elsewhere = msgspec.structs.replace(spec, params=spec.params.replace("<locals>.Local", "<locals>.Other"))
    with pytest.raises((RecipeError, RecipeNotImportable), match="cannot be imported in a worker"):
        load_recipe(elsewhere)

"""Several recipes over one sample: a video, its caption and its latent fill one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from libhelix.errors import RecipeError, UsageError
from libhelix.plan.rows import sum_costs
from libhelix.recipe import Descriptor, Field, Pack, Part, Recipe, Rng, Sample, check_descriptor
from libhelix.recipes.rows import spec_of
from libhelix.recipes.run import load_recipe
from libhelix.wire.settings import RecipeSpec

_recipes: dict[RecipeSpec, Recipe] = {}
"""Recipes by what they travel as. Here are those that were given themselves, which an inline loader can use
from a notebook; in other processes they are loaded by name."""


def Together(**recipes: Recipe) -> Composed:  # noqa: N802 - it is written where other recipes are
    """A recipe that fills the fields of several: `Together(video=Clip(frames=8), caption=Text(...))`.

    The field of a recipe that has one is named by its keyword, others `<keyword>_<field>`. Declared costs are
    summed by name. Only one recipe is filled in parts: of those whose fields can be split, the first that
    takes codec threads, else the first. The others are filled with part 0.
    """
    members: dict[str, RecipeSpec] = {}
    for name, recipe in recipes.items():
        if not isinstance(recipe, Recipe):
            raise UsageError(f"Together({name}={recipe!r:.80}) is no libhelix.Recipe; see libhelix.recipes")
        try:
            members[name] = spec_of(recipe)
        except (TypeError, msgspec.EncodeError) as e:
            raise UsageError(f"Together({name}=): parameters must be plain values ({e})") from e
        _recipes[members[name]] = recipe
    return Composed(members)


class _Member(NamedTuple):
    name: str
    recipe: Recipe
    desc: Descriptor

    @property
    def split(self) -> bool:
        return any(field.rows_per_unit for field in self.desc.fields)

    @property
    def us(self) -> int:
        return sum(self.desc.segment_us)

    def named(self, field: str) -> str:
        """The field's name among those of all."""
        return self.name if len(self.desc.fields) == 1 else f"{self.name}_{field}"


class Composed(Recipe, frozen=True):
    """What `Together` makes. Its members are named by `module:Class`, as recipes are everywhere."""

    members: dict[str, RecipeSpec]

    def __post_init__(self) -> None:
        if not self.members:
            raise UsageError("Together() needs recipes, such as Together(video=Clip(frames=8), caption=...)")
        for spec in self.members.values():
            _recipe(spec)  # a member that workers cannot import fails here, not sample by sample

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """The members' descriptors as one; they are in `draws`, in the order of the members."""
        return _joined(self._described(sample, [rng.bits() for _ in self.members]))

    def shrink(self, sample: Sample, rng: Rng, caps: Mapping[str, int]) -> Descriptor | None:
        """With the first member made smaller that can be, and by enough: the others stay as they are."""
        seeds = [rng.bits() for _ in self.members]
        members = self._described(sample, seeds)
        for at, member in enumerate(members):
            others = sum_costs(m.desc.costs for m in members if m is not member)
            left = {name: cap - others.get(name, 0) for name, cap in caps.items()}
            if min(left.values(), default=0) < 0:
                continue
            smaller = member.recipe.shrink(sample, Rng(seeds[at], 0, 0), left)
            if smaller is None:
                continue
            checked = check_descriptor(smaller, _said(member.name, member.recipe))
            desc = _joined([*members[:at], member._replace(desc=checked), *members[at + 1 :]])
            if all(desc.costs.get(name, 0) <= cap for name, cap in caps.items()):
                return desc
        return None

    def fill(
        self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]
    ) -> Mapping[str, tuple[int, ...]]:
        """Fill every member's fields, under its own names for them."""
        members = self._members(desc.draws)
        lead = _lead(members)
        true: dict[str, tuple[int, ...]] = {}
        for member in members:
            mine = part if member is lead else Part(0, member.desc.units, member.desc.units, part.threads)
            if member is not lead and not part.first:
                continue
            names = {field.name: member.named(field.name) for field in member.desc.fields}
            fields = {name: out[whole] for name, whole in names.items() if whole in out}
            shapes = member.recipe.fill(sample, member.desc, mine, fields) or {}
            true.update((names[name], shape) for name, shape in shapes.items() if name in names)
        return true

    def _described(self, sample: Sample, seeds: Sequence[int]) -> list[_Member]:
        # Every member draws from numbers of its own: what one draws does not change what others do.
        descs = []
        for (name, spec), seed in zip(self.members.items(), seeds):
            recipe = _recipe(spec)
            descs.append(check_descriptor(recipe.describe(sample, Rng(seed, 0, 0)), _said(name, recipe)))
        return self._members(descs)

    def _members(self, descs: Sequence[Descriptor]) -> list[_Member]:
        return [_Member(name, _recipe(spec), desc) for (name, spec), desc in zip(self.members.items(), descs)]


def _said(name: str, recipe: Recipe) -> str:
    return f"Together({name}={type(recipe).__name__}(...))"


def _recipe(spec: RecipeSpec) -> Recipe:
    if spec not in _recipes:
        _recipes[spec] = load_recipe(spec)
    return _recipes[spec]


def _lead(members: Sequence[_Member]) -> _Member | None:
    """The member that is filled in parts. Which it is must not depend on the sample: fields are split or not
    in all samples of a loader."""
    candidates = [member for member in members if member.split]
    return max(candidates, key=lambda member: member.desc.threads, default=None)


def _joined(members: Sequence[_Member]) -> Descriptor:
    lead = _lead(members)
    counted = [name for member in members for name in member.desc.costs]
    shared = {name for name in counted if counted.count(name) > 1}
    costs = sum_costs(member.desc.costs for member in members)
    fields: list[Field] = []
    for member in members:
        for field in member.desc.fields:
            fields.append(_field(member, field, lead, shared))
            if isinstance(field.layout, Pack) and field.layout.counts in shared:
                costs[f"{member.name}_{field.layout.counts}"] = member.desc.costs[field.layout.counts]
    _check_names(fields)
    segment_us = list(lead.desc.segment_us) if lead is not None else [0]
    segment_us[0] += sum(member.us for member in members if member is not lead)
    return Descriptor(
        fields=tuple(fields),
        units=lead.desc.units if lead is not None else 1,
        cuts=lead.desc.cuts if lead is not None else (),
        segment_us=tuple(segment_us),
        costs=costs,
        group=", ".join(filter(None, (member.desc.group for member in members))),
        draws=tuple(member.desc for member in members),
        kind=max(members, key=lambda member: member.us).desc.kind,
        threads=lead is not None and lead.desc.threads,
    )


def _field(member: _Member, field: Field, lead: _Member | None, shared: set[str]) -> Field:
    layout = field.layout
    if isinstance(layout, Pack) and layout.counts in shared:
        # The sum is not the length of this field; its own part of it is.
        layout = msgspec.structs.replace(layout, counts=f"{member.name}_{layout.counts}")
    return msgspec.structs.replace(
        field,
        name=member.named(field.name),
        layout=layout,
        rows_per_unit=field.rows_per_unit if member is lead else 0,
    )


def _check_names(fields: Sequence[Field]) -> None:
    names = [field.name for field in fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RecipeError(f"Together: two recipes give a field {twice[0]!r}; choose other keywords")

"""Several sources with weights: shares, repeats, resume and the account, from daemon and inline alike."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image as Pil

import libhelix as hx
from libhelix.errors import ResumeMismatch, UsageError
from libhelix.index.build import build
from libhelix.plan.coverage import coverage
from libhelix.plan.state import decoded
from tests.system.recipes import Drawn

SIZES = {"cats": 20, "dogs": 7, "owls": 3}
WEIGHTS = {"cats": 5, "dogs": 3, "owls": 2}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three indexes."""
    found = {}
    for name, n in SIZES.items():
        folder = tmp_path_factory.mktemp("sources") / name
        folder.mkdir()
        for i in range(n):
            Pil.new("RGB", (8, 8), (i, 0, 0)).save(folder / f"{name}{i:02d}.png")
        build([folder], folder / "index.arrow")
        found[name] = folder / "index.arrow"
    return found


def _loader(sources: dict[str, Path], backend: Any, weights: Any = None, **options: Any) -> hx.Loader:
    chosen: dict[str, Any] = {"batching": hx.FixedBatch(4), "epochs": None, "seed": 5, **options}
    mixture = hx.Mixture(
        {sources[name]: w for name, w in (weights or WEIGHTS).items()},
        epoch_samples=chosen.pop("epoch_samples", None),
        schedule={
            at: {sources[n]: w for n, w in ws.items()} for at, ws in chosen.pop("schedule", {}).items()
        },
    )
    return hx.Loader(mixture, recipe=Drawn(), backend=backend, **chosen)


@pytest.mark.parametrize("batching", [hx.FixedBatch(5), hx.TokenBudget(20, max_bytes=1 << 16)])
def test_daemon_and_inline_mix_alike_and_repeats_draw_anew(
    sources: dict[str, Path], job: str, batching: Any
) -> None:
    drawn: dict[int, set[tuple[int, ...]]] = {}
    with (
        _loader(sources, "daemon", batching=batching, epochs=2) as served,
        _loader(sources, "inline", batching=batching, epochs=2) as inline,
    ):
        for a, b in zip(served, inline, strict=True):
            assert (a.ids, a.sample_keys) == (b.ids, b.sample_keys)
            assert torch.equal(a["draws"], b["draws"])
            for i, draws in zip(a.ids, a["draws"].tolist(), strict=True):
                assert tuple(draws) not in drawn.setdefault(i, set())
                drawn[i].add(tuple(draws))
    assert len(drawn[29]) >= 4  # of three owls, each came several times


def test_every_prefix_has_the_shares_that_were_asked_for(sources: dict[str, Path]) -> None:
    loader = _loader(sources, "inline", batching=hx.FixedBatch(1), shuffle=True)
    batches, counts = iter(loader), Counter[str]()
    total = sum(WEIGHTS.values())
    seen: Counter[str] = Counter()
    for n in range(1, 91):
        (key,) = next(batches).sample_keys
        counts[key[:4]] += 1
        seen[key] += 1
        for name, weight in WEIGHTS.items():
            assert abs(counts[name] - n * weight / total) < 1
    for name in SIZES:
        of_source = [n for key, n in seen.items() if key.startswith(name)]
        assert max(of_source) - min(of_source) <= 1


def test_weights_change_when_the_schedule_says_so(sources: dict[str, Path]) -> None:
    loader = _loader(
        sources,
        "inline",
        batching=hx.FixedBatch(1),
        epoch_samples=20,
        schedule={30: {"owls": 1, "cats": 0, "dogs": 0}},
    )
    batches = iter(loader)
    keys = [next(batches).sample_keys[0] for _ in range(50)]
    assert {k[:4] for k in keys[:30]} == set(SIZES)
    assert {k[:4] for k in keys[30:]} == {"owls"}


def test_a_mixture_resumes_at_any_step_and_with_other_ranks(sources: dict[str, Path]) -> None:
    whole = [b.ids for b in _loader(sources, "inline", epochs=2)]
    loader = _loader(sources, "inline", epochs=2)
    states = [loader.state_dict()]
    states += [json.loads(json.dumps(loader.state_dict())) for _ in loader]
    for k in (0, 3, 7, 9):
        again = _loader(sources, "inline", epochs=2)
        again.load_state_dict(states[k])
        assert [b.ids for b in again] == whole[k:]
    halves = []
    for rank in range(2):
        half = _loader(sources, "inline", epochs=2, batching=hx.FixedBatch(2), dp_rank=rank, dp_size=2)
        half.load_state_dict(states[3])
        halves.append([b.ids for b in half])
    assert [sorted(a + b) for a, b in zip(*halves, strict=True)] == [sorted(ids) for ids in whole[3:]]


def test_equal_costs_do_not_sort_sources_by_rank(sources: dict[str, Path]) -> None:
    halves = []
    for rank in range(2):
        loader = _loader(
            sources,
            "inline",
            {"cats": 1, "dogs": 1, "owls": 0},
            epochs=4,
            dp_rank=rank,
            dp_size=2,
            batching=hx.Buckets(10**9, max_samples=4, regroup=1),
        )
        halves.append(Counter(k[:4] for b in loader for k in b.sample_keys))
    for counts in halves:
        assert set(counts) == {"cats", "dogs"}


def test_the_account_names_each_source(sources: dict[str, Path]) -> None:
    loader = _loader(sources, "inline", batching=hx.FixedBatch(4))
    batches = iter(loader)
    seen = Counter(key[:4] for _ in range(25) for key in next(batches).sample_keys)
    found = coverage(decoded(loader.state_dict()))
    assert [s.delivered for s in found.sources] == [seen[name] for name in SIZES]
    assert [round(s.asked, 1) for s in found.sources] == [0.5, 0.3, 0.2]
    assert sum(s.share for s in found.sources) == pytest.approx(1.0)


def test_a_mixture_of_other_weights_or_sources_is_another(sources: dict[str, Path]) -> None:
    state = _loader(sources, "inline").state_dict()
    with pytest.raises(ResumeMismatch, match=r"weights .*5.* -> .*1"):
        _loader(sources, "inline", {"cats": 1, "dogs": 3, "owls": 2}).load_state_dict(state)
    with pytest.raises(ResumeMismatch, match=r"index .*sources"):
        _loader(sources, "inline", {"cats": 5, "dogs": 3}).load_state_dict(state)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"cats": -1, "dogs": 1}, "is negative"),
        ({"cats": 0, "dogs": 0}, "sum to 0"),
        ({"cats": float("nan"), "dogs": 1}, "is not a number to weigh by"),
        ({}, "no sources"),
    ],
)
def test_weights_that_mean_nothing_are_refused(
    sources: dict[str, Path], weights: dict[str, float], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        hx.Loader(
            hx.Mixture({sources[name]: w for name, w in weights.items()}),
            recipe=Drawn(),
            batching=hx.FixedBatch(1),
            backend="inline",
        )


def test_a_schedule_of_strange_sources_is_refused(sources: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match=r"schedule\[9\] names .*x.arrow"):
        hx.Mixture({sources["cats"]: 1.0}, schedule={9: {"x.arrow": 1.0}})

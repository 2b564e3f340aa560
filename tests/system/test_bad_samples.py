"""Samples that cannot be decoded: another stands in, they are in a list, and can be left out."""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
import torch
from click.testing import CliRunner

import libhelix as hx
from libhelix.bad_samples import list_of
from libhelix.ctl import main
from libhelix.errors import ResumeMismatch, TooManyBadSamples, UsageError
from libhelix.index.build import build
from libhelix.index.read import Index
from libhelix.plan.coverage import coverage
from libhelix.plan.state import decoded
from tests.clips import make_clip
from tests.system.recipes import Picky, Plain, Weighed

Backend = Literal["daemon", "inline"]
BACKENDS: tuple[Backend, ...] = ("daemon", "inline")


@pytest.fixture
def twelve(tmp_path: Path) -> Path:
    """An index of twelve short clips, 00.mp4 to 11.mp4."""
    folder = tmp_path / "clips"
    folder.mkdir()
    for i in range(12):
        make_clip(folder / f"{i:02}.mp4", 9, size=(64, 96), first_number=20 * i)
    build([folder], tmp_path / "x.arrow")
    return tmp_path / "x.arrow"


def _loader(index: Path, backend: Backend = "inline", **options: Any) -> hx.Loader:
    options = {"recipe": Plain(), "batching": hx.FixedBatch(4), "seed": 3, **options}
    return hx.Loader(index, backend=backend, **options)


class Got(NamedTuple):
    """What is kept of a batch, which itself is let go of."""

    sample_keys: tuple[str, ...]
    valid: list[bool]
    video: torch.Tensor


def _list(batches: Iterable[hx.Batch]) -> list[Got]:
    return [Got(tuple(b.sample_keys), b.valid.tolist(), b["video"].clone()) for b in batches]


def _quietly(loader: hx.Loader) -> list[Got]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hx.HelixWarning)
        return _list(loader)


@pytest.fixture(autouse=True)
def _cache_of_the_test(_own_cache: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIX_CACHE", str(tmp_path / "cache"))


def _ctl(*args: str) -> Any:
    return CliRunner().invoke(main.cli, args, standalone_mode=False, catch_exceptions=False)


def _keys(batches: list[Got]) -> list[str]:
    return [Path(key).name for batch in batches for key in batch.sample_keys]


# ---- replacing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [1, 3])
def test_another_sample_of_the_window_stands_in_and_both_backends_choose_the_same(
    twelve: Path, job: str, epochs: int
) -> None:
    recipe = Picky(not_described=("03.mp4",), not_filled=("07.mp4", "08.mp4"))
    given: dict[Backend, list[Got]] = {}
    for backend in BACKENDS:
        with _loader(twelve, backend, recipe=recipe, on_bad="replace", epochs=epochs) as loader:
            given[backend] = _quietly(loader)
    for served, inline in zip(given["daemon"], given["inline"], strict=True):
        assert served.sample_keys == inline.sample_keys
        assert torch.equal(served.video, inline.video)
        assert all(served.valid)
    times = Counter(_keys(given["inline"]))
    assert not {"03.mp4", "07.mp4", "08.mp4"} & set(times)
    assert sum(times.values()) == 12 * epochs
    assert min(times.values()) >= epochs, "what stands in is given once more, not instead"


def test_a_stand_in_is_the_sample_that_it_is_named_as(twelve: Path) -> None:
    whole = {
        Path(key).name: video
        for batch in _list(_loader(twelve))
        for key, video in zip(batch.sample_keys, batch.video)
    }
    with _loader(twelve, recipe=Picky(not_filled=("07.mp4",)), on_bad="replace") as loader:
        for batch in _quietly(loader):
            for key, video in zip(batch.sample_keys, batch.video):
                assert torch.equal(video, whole[Path(key).name])


@pytest.mark.parametrize("backend", BACKENDS)
def test_where_none_fits_the_sample_is_masked(twelve: Path, job: str, backend: Backend) -> None:
    recipe = Picky(not_filled=("05.mp4",))
    with _loader(twelve, backend, recipe=recipe, on_bad="replace", batching=hx.FixedBatch(1)) as loader:
        found = {Path(b.sample_keys[0]).name: b.valid[0] for b in _quietly(loader)}
    assert len(found) == 12
    assert [key for key, valid in found.items() if not valid] == ["05.mp4"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("on_bad", ["mask", "replace"])
def test_past_its_budget_a_loader_fails(
    twelve: Path, job: str, backend: Backend, on_bad: Literal["mask", "replace"]
) -> None:
    some = tuple(f"{i:02}.mp4" for i in (2, 5, 9))
    enough, too_few = hx.BadBudget(count=3), hx.BadBudget(count=2, rate=0.0)
    loader = _loader(twelve, backend, recipe=Picky(not_filled=some), on_bad=on_bad, bad_budget=enough)
    with loader:
        assert len(_quietly(loader)) == 3
    loader = _loader(twelve, backend, recipe=Picky(not_filled=some), on_bad=on_bad, bad_budget=too_few)
    with loader, pytest.raises(TooManyBadSamples, match="3 samples failed in epoch 0, 2 are allowed"):
        _quietly(loader)


def test_what_is_left_over_is_planned_by_its_own_rows_whoever_stood_in(twelve: Path, job: str) -> None:
    recipe = Weighed(not_described=("03.mp4", "07.mp4", "08.mp4"))
    options: dict[str, Any] = {
        "batching": hx.TokenBudget(7, regroup=2),
        "recipe": recipe,
        "on_bad": "replace",
    }
    given: dict[Backend, list[tuple[str, ...]]] = {}
    for backend in BACKENDS:
        with _loader(twelve, backend, epochs=6, **options) as loader:
            given[backend] = [got.sample_keys for got in _quietly(loader)]
    assert given["daemon"] == given["inline"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hx.HelixWarning)
        for stop in range(1, len(given["inline"]), 3):
            loader = _loader(twelve, epochs=6, **options)
            for _ in islice(loader, stop):
                pass
            rest = _loader(twelve, epochs=6, **options)
            rest.load_state_dict(loader.state_dict())
            assert [got.sample_keys for got in _list(rest)] == given["inline"][stop:], f"from {stop}"


# ---- the list ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_user_finds_bad_samples_in_a_list(twelve: Path, job: str, backend: Backend) -> None:
    assert "no sample has failed" in _ctl("errors", str(twelve)).output
    (twelve.parent / "clips" / "04.mp4").write_bytes(b"no longer a video")
    recipe = Picky(not_described=("03.mp4",))
    with _loader(twelve, backend, recipe=recipe, name="mine", epochs=2) as loader:
        assert len(_quietly(loader)) == 6
    found = json.loads(_ctl("errors", str(twelve), "--json").output)
    assert Counter((Path(bad["key"]).name, bad["stage"]) for bad in found) == {
        ("03.mp4", "describe"): 2,
        ("04.mp4", "fill"): 2,
    }
    assert {bad["epoch"] for bad in found} == {0, 1}
    changed = next(bad for bad in found if bad["stage"] == "fill")
    assert changed["path"] == str(twelve.parent / "clips" / "04.mp4")
    assert changed["loader"] == "mine"
    assert changed["offset"] == 0
    assert "changed since it was indexed" in changed["error"]
    text = _ctl("errors", str(twelve)).output
    assert "2 samples failed, 4 times" in text
    assert "04.mp4: changed since it was indexed; run helixctl index again" in text


def test_a_list_that_cannot_be_written_is_said_and_stops_nothing(
    twelve: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HELIX_CACHE", str(tmp_path / "file"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert len(_list(_loader(twelve, recipe=Picky(not_filled=("03.mp4",))))) == 3
    (unnoted, masked) = (str(w.message) for w in told)
    assert "bad samples are not noted: " in unnoted
    assert "set HELIX_CACHE" in unnoted
    assert "a sample is masked: 03.mp4: not to be filled" in masked


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("full", [True, False])
def test_a_full_disk_or_one_that_cannot_be_written_is_said_once_and_the_job_goes_on(
    twelve: Path, tmp_path: Path, job: str, backend: Backend, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if full:
        path = Path(list_of(Index.open(twelve)))
        path.parent.mkdir(parents=True)
        path.symlink_to("/dev/full")
    else:
        monkeypatch.setenv("HELIX_CACHE", "/proc/sys")  # where root cannot write either
    recipe = Picky(not_filled=("03.mp4", "08.mp4"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with _loader(twelve, backend, recipe=recipe, epochs=3) as loader:
            assert len(_list(loader)) == 9
    said = [str(w.message) for w in told]
    (unnoted,) = [text for text in said if "bad samples are not noted: " in text]
    assert ("No space left on device" if full else "/proc/sys/bad-samples") in unnoted
    assert unnoted.endswith("set HELIX_CACHE to a folder that is writable and has room")
    assert len([text for text in said if "a sample is masked: " in text]) == 6


# ---- quarantine ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_in_quarantine_is_not_drawn(twelve: Path, job: str, backend: Backend) -> None:
    key = next(k for k in _all_keys(twelve) if k.endswith("05.mp4"))
    assert (
        "1 added, 1 left out" in _ctl("quarantine", "add", str(twelve), key, "--why", "a wrong label").output
    )
    assert f"{key}: a wrong label" in _ctl("quarantine", "ls", str(twelve)).output
    with _loader(twelve, backend, batching=hx.FixedBatch(1), epochs=2) as loader:
        assert len(loader) == 22
        times = Counter(_keys(_list(loader)))
    assert times == {f"{i:02}.mp4": 2 for i in range(12) if i != 5}
    assert "1 taken in again, 0 left out" in _ctl("quarantine", "rm", str(twelve), key).output
    assert "no sample is left out" in _ctl("quarantine", "ls", str(twelve)).output
    assert not Path(f"{twelve}.quarantine").exists()
    assert len(_keys(_list(_loader(twelve)))) == 12


def test_samples_that_failed_so_often_go_there_and_come_back_when_they_are_mended(twelve: Path) -> None:
    film = twelve.parent / "clips" / "04.mp4"
    good, times = film.read_bytes(), film.stat()
    film.write_bytes(b"no longer a video")
    with _loader(twelve, recipe=Picky(not_described=("03.mp4",)), epochs=2) as loader:
        _quietly(loader)
    assert "0 added" in _ctl("quarantine", "add", str(twelve), "--failed", "3").output
    assert "2 added, 2 left out" in _ctl("quarantine", "add", str(twelve), "--failed", "2").output
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(_keys(_list(_loader(twelve, batching=hx.FixedBatch(1))))) == 10
    result = _ctl("quarantine", "retry", str(twelve))
    assert result.return_value == 1
    assert "in again: 03.mp4" in result.output, "a recipe may fail where the file is all right"
    assert "stays out: 04.mp4: changed since" in result.output
    by_hand = next(k for k in _all_keys(twelve) if k.endswith("09.mp4"))
    _ctl("quarantine", "add", str(twelve), by_hand, "--why", "a wrong label")
    film.write_bytes(good)
    os.utime(film, ns=(times.st_atime_ns, times.st_mtime_ns))
    result = _ctl("quarantine", "retry", str(twelve))
    assert result.return_value == 0
    assert "not looked at: 1 that somebody left out" in result.output
    assert f"{by_hand}: a wrong label" in _ctl("quarantine", "ls", str(twelve)).output
    assert len(_keys(_list(_loader(twelve, batching=hx.FixedBatch(1))))) == 11


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_epoch_is_ended_as_it_was_begun_and_the_next_has_the_new_quarantine(
    twelve: Path, job: str, backend: Backend
) -> None:
    whole = _keys(_list(_loader(twelve, batching=hx.FixedBatch(1))))
    with _loader(twelve, backend, batching=hx.FixedBatch(1)) as loader:
        batches = iter(loader)
        got = _list(islice(batches, 5))
        inside = json.loads(json.dumps(loader.state_dict()))
    with _loader(twelve, backend, batching=hx.FixedBatch(1)) as loader:
        got_all = _list(loader)
        between = loader.state_dict()
    assert _keys(got_all) == whole
    gone = next(k for k in _all_keys(twelve) if k.endswith(whole[8]))
    _ctl("quarantine", "add", str(twelve), gone)
    with _loader(twelve, backend, batching=hx.FixedBatch(1)) as loader:
        loader.load_state_dict(inside)
        assert _keys(got) + _keys(_list(loader)) == whole
    with _loader(twelve, backend, batching=hx.FixedBatch(1)) as loader:
        loader.load_state_dict(between)
        rest = _keys(_list(loader))
        assert sorted(rest) == sorted(set(whole) - {whole[8]})
        state = loader.state_dict()
    assert len(state["quarantine"]) == 1
    assert [e.delivered for e in coverage(decoded(state)).epochs] == [0]
    assert coverage(decoded(state)).earlier == 2


def test_a_state_that_is_refused_leaves_the_quarantine_as_it_is(twelve: Path) -> None:
    keys = _all_keys(twelve)
    _ctl("quarantine", "add", str(twelve), keys[3], keys[4])
    loader = _loader(twelve, batching=hx.FixedBatch(1))
    for _ in islice(loader, 2):
        pass
    state = loader.state_dict()
    _ctl("quarantine", "rm", str(twelve), keys[3], keys[4])
    other = _loader(twelve, batching=hx.FixedBatch(1), seed=99)
    with pytest.raises(ResumeMismatch, match="seed 3 -> 99"):
        other.load_state_dict(state)
    assert sorted(_keys(_list(other))) == [f"{i:02}.mp4" for i in range(12)]


def test_all_samples_of_a_key_that_repeats_are_left_out(tmp_path: Path) -> None:
    for i in range(4):
        make_clip(tmp_path / f"{i}.mp4", 9, size=(64, 96))
    lines = [{"id": f"k{i // 2}", "video": f"{i}.mp4"} for i in range(4)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    build([tmp_path / "x.jsonl"], tmp_path / "x.arrow")
    told = _ctl("quarantine", "add", str(tmp_path / "x.arrow"), "k1", "k1").output
    assert "2 (of 1 keys) added" in told
    assert len(_loader(tmp_path / "x.arrow", batching=hx.FixedBatch(1))) == 2
    assert (
        "2 (of 1 keys) taken in again, 0 left out"
        in _ctl("quarantine", "rm", str(tmp_path / "x.arrow"), "k1", "k1").output
    )


def test_what_a_loader_left_out_of_its_index_is_said(twelve: Path, tmp_path: Path) -> None:
    (tmp_path / "clips" / "bad.mp4").write_bytes(b"no film")
    with pytest.warns(hx.HelixWarning, match=r"a file or part of .*clips cannot be used"):
        _loader(tmp_path / "clips")


def test_a_key_that_is_not_there_is_told_with_the_nearest(twelve: Path) -> None:
    with pytest.raises(UsageError, match=r"has no sample '05\.mp'; near are: 05\.mp4"):
        _ctl("quarantine", "add", str(twelve), "05.mp")
    with pytest.raises(UsageError, match="not in quarantine"):
        _ctl("quarantine", "rm", str(twelve), "05.mp4")
    with pytest.raises(UsageError, match="--failed"):
        _ctl("quarantine", "add", str(twelve))


def _all_keys(index: Path) -> list[str]:
    keys: list[str] = Index.open(index).keys().to_pylist()
    return keys

"""`bench decode` on tiny clips: that sides decode the same, and what is made of their windows."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import libhelix as hx
from bench.clips import encode
from bench.decode import report
from bench.decode.command import decode_settings, run
from bench.decode.report import TARGETS, doubts, figures, spread
from bench.decode.rounds import Window, WorkloadRounds
from bench.demo.recipe import LabelledClip
from bench.order import batches
from bench.samples import Visit, read_samples, write_index
from bench.torch_loader import RecipeDataset, collate
from bench.workloads import WORKLOADS, Workload
from libhelix.recipes import Clip
from tests.bench.test_handoff import TINY, marked_by_us


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decode")
    for plan in TINY.plans():
        encode(plan, folder / "clips")
    return write_index(folder / "clips", folder / "index.arrow")


def window(side: str, *, cpu_s: float, wall_s: float = 1.0, foreign_cores: float = 0.0) -> Window:
    return Window(side=side, samples=10, wall_s=wall_s, cpu_s=cpu_s, foreign_cores=foreign_cores)


def rounds(name: str, *, foreign_cores: float = 0.0) -> WorkloadRounds:
    windows = [
        *(window("helix", cpu_s=c, wall_s=1.25) for c in (0.9, 1.0, 5.0)),
        *(window("torch", cpu_s=2.0, wall_s=2.0) for _ in range(3)),
        *(window("ceiling", cpu_s=0.8, foreign_cores=foreign_cores) for _ in range(3)),
    ]
    return WorkloadRounds(workload=name, sharing="file_descriptor", windows=tuple(windows))


def test_figures_are_medians_so_that_one_disturbed_round_does_not_count() -> None:
    named = figures([rounds("w")])
    assert named["w_helix_cpu_ms_per_sample"] == pytest.approx(100.0)
    assert named["w_cpu_ratio"] == pytest.approx(0.5)
    assert named["w_cpu_over_bare"] == pytest.approx(1.25)
    assert named["w_throughput_of_ceiling"] == pytest.approx(0.8)
    assert named["w_helix_cpu_spread"] == pytest.approx(4.1)


def test_every_target_has_its_figure() -> None:
    named = figures([rounds(w.name) for w in WORKLOADS])
    assert {t.figure for t in TARGETS} <= set(named)
    assert len(TARGETS) == 6


def test_the_spread_is_a_share_of_the_median() -> None:
    assert spread([1.0, 2.0, 3.0]) == pytest.approx(1.0)
    assert spread([2.0]) == 0.0


def test_windows_that_others_disturbed_are_named() -> None:
    assert doubts([rounds("w")], cores=2) == ()
    assert "w: others took up to 0.50 of 2 cores in 3 of 9" in doubts([rounds("w", foreign_cores=0.5)], 2)[0]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_data_set_decodes_what_the_loader_decodes_in_the_same_order(index: Path, rank: int) -> None:
    recipe = Clip(frames=2, size=(16, 16))
    loader = hx.Loader(
        index,
        recipe=recipe,
        batching=hx.FixedBatch(1),
        seed=7,
        epochs=2,
        backend="inline",
        dp_rank=rank,
        dp_size=2,
    )
    order = batches(samples=len(read_samples(index)), batch=1, seed=7, rank=rank, ranks=2)
    dataset = RecipeDataset(index, recipe, 7)
    with loader:
        for ours, visits in zip(loader, order, strict=False):
            theirs = collate(frozenset(), frozenset(), dataset.__getitems__(visits))
            assert ours.ids == tuple(v.sample for v in visits)
            assert ours.epoch == visits[0].epoch
            assert torch.equal(ours["video"], theirs["video"])
            assert int(theirs["tokens"].sum()) == ours.num_tokens


def test_packed_fields_lie_end_to_end_with_their_bounds(index: Path) -> None:
    dataset = RecipeDataset(index, LabelledClip(rate=12.0, size=(32, 48)), 0)
    samples = dataset.__getitems__([Visit(0, 0), Visit(1, 0)])
    lengths = [len(s["video"]) for s in samples]
    batch = collate(frozenset({"video"}), frozenset(), samples)
    assert batch["video_cu_seqlens"].tolist() == [0, lengths[0], sum(lengths)]
    assert np.array_equal(batch["video"][lengths[0] :].numpy(), samples[1]["video"].numpy())
    assert batch["label"].shape == (2,)


def test_ranks_share_out_the_samples_of_a_step() -> None:
    first = [next(batches(samples=20, batch=2, seed=1, rank=r, ranks=3)) for r in range(3)]
    flat = [v.sample for b in first for v in b]
    assert len(set(flat)) == 6
    every = itertools.islice(batches(samples=6, batch=3, seed=1), 4)
    assert sorted(v.sample for b in every for v in b if v.epoch == 1) == list(range(6))


def test_memory_is_the_same_on_all_sides() -> None:
    settings = decode_settings(1, 1.0, "auto")
    assert settings.ring == settings.prefetch * len(settings.cores) + 1
    assert settings.sharing is None
    assert decode_settings(1, 1.0, "file_system").sharing == "file_system"


def test_a_tiny_run_of_all_sides(tmp_path: Path) -> None:
    workload = Workload(
        name="tiny", frames=2, height=16, width=16, batch=1, clip_width=64, clip_height=48, clips=4,
        clip_frames=6, codec="mpeg4",
    )  # fmt: skip
    settings = decode_settings(1, 0.1, "file_system")
    before = set(Path("/dev/shm").glob("torch_*"))
    results = run([workload], settings, tmp_path, Console(quiet=True))
    assert [w.side for w in results.workloads[0].windows] == ["helix", "torch", "ceiling"]
    assert all(w.samples > 0 for w in results.workloads[0].windows)
    assert results.figures["tiny_cpu_ratio"] > 0
    assert report.table(results).row_count == 3
    assert not marked_by_us()
    assert set(Path("/dev/shm").glob("torch_*")) <= before

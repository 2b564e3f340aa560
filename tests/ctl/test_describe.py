"""helixctl describe: what it stores, what it shows, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pil

import libhelix as hx
from libhelix.ctl.main import main
from libhelix.index.build import build
from libhelix.index.read import Index
from libhelix.recipes.rows import path_of
from tests.system.recipes import Patchy, Tokens

SAMPLES = 60
RECIPE = "tests.system.recipes:Patchy"
ROOT = Path(__file__).resolve().parents[2]

MINE = """
import os, time
import libhelix as hx
print("imported")
class Mine(hx.Recipe, frozen=True):
    n: int
    wait_s: float = 0.0
    def describe(self, sample, rng):
        time.sleep(self.wait_s)
        open("begun", "w").close()
        return hx.Descriptor(fields=(hx.Field("x", "uint8", (self.n,)),), costs={"tokens": self.n})
"""


@pytest.fixture
def index(tmp_path: Path) -> str:
    for i in range(SAMPLES):
        Pil.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / f"{i:03d}.png")
    build([tmp_path], tmp_path / "x.arrow")
    return str(tmp_path / "x.arrow")


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["describe", *args])
    out, err = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


def test_the_spread_of_costs_is_shown_and_rows_lie_beside_the_index(
    index: str, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = list(range(0, 24, 2))
    code, out, err = run(capsys, index, "--recipe", RECIPE, "--param", f"failing={failing}")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    path = path_of(Index.open(index), Patchy(failing=tuple(failing)))
    assert lines[0] == f"{path}: 60 samples by {RECIPE}, 12 failed"
    assert os.path.exists(path)
    assert lines[1].split() == ["min", "p50", "p95", "max", "mean", "total"]
    tokens = sorted(i % 7 + 1 for i in range(SAMPLES) if i not in failing)
    mean = f"{np.mean(tokens):.2f}".rstrip("0").rstrip(".")
    assert lines[2].split() == ["tokens", "1", "4", "7", "7", mean, str(sum(tokens))]
    assert "groups   " in out
    assert f"1 tokens {tokens.count(1)}" in out
    assert out.count("raised KeyError: 'caption'") == 10
    assert "and 2 more (--json lists all)" in out
    assert "draws" not in out
    assert max(len(line) for line in lines[1:5]) < 80


def test_json_and_several_recipes_side_by_side(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for more in ([], ["--param", "drawn=true", "--seed", "4"]):
        code, out, _ = run(capsys, index, "--recipe", RECIPE, *more, "--json")
        assert code == 0
        found.append(json.loads(out))
    plain, drawn = found
    assert plain["output"] != drawn["output"]
    assert all(os.path.exists(one["output"]) for one in found)
    assert (plain["drawn"], drawn["drawn"], drawn["seed"], plain["plan"]) == (False, True, 4, None)
    assert plain["spread"]["tokens"]["total"] == sum(i % 7 + 1 for i in range(SAMPLES))
    assert drawn["groups"].keys() == {"heads", "tails"}
    assert sum(drawn["groups"].values()) == SAMPLES
    text = run(capsys, index, "--recipe", RECIPE, "--param", "drawn=true")[1]
    assert "Costs depend on random draws: the rows hold for seed 0 and epoch 0 only" in text


PLANS: dict[str, tuple[str, Any]] = {
    "samples": ("FixedBatch(4)", hx.FixedBatch(4)),
    "samples per step": ("hx.FixedBatch(samples=4, per_step=3)", hx.FixedBatch(4, per_step=3)),
    "tokens": ("TokenBudget(19, regroup=2)", hx.TokenBudget(19, regroup=2)),
    "few": (
        "TokenBudget(19, max_samples=3, per_step=3, max_bytes=2_000)",
        hx.TokenBudget(19, max_samples=3, per_step=3, max_bytes=2000),
    ),
    "length": ("libhelix.Packed(24, pad_to=12)", hx.Packed(24, pad_to=12)),
    "patches": (
        "Packed(24, max_patches=14, oversize='shrink')",
        hx.Packed(24, max_patches=14, oversize="shrink"),
    ),
    "compute": ("Buckets(60, 2)", hx.Buckets(60, power=2)),
    "kind": (
        ' Buckets(60, same_kind="step", max_samples=4) ',
        hx.Buckets(60, max_samples=4, same_kind="step"),
    ),
}


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("end", ["drop", "pad"])
def test_the_plan_is_what_loaders_get(
    index: str, kind: str, end: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    expression, batching = PLANS[kind]
    args = ["--batching", expression, "--ranks", "2", "--micro-batches", "2", "--end", end, "--seed", "5"]
    args += ["--shuffle-block", "7"]
    name = "tests.system.recipes:Tokens"
    plan = json.loads(run(capsys, index, "--recipe", name, *args, "--json")[1])["plan"]
    ranks = [
        hx.Loader(
            index, recipe=Tokens(), batching=batching, backend="inline", seed=5, end=end, shuffle_block=7,
            micro_batches=2, dp_rank=r, dp_size=2,
        )
        for r in range(2)
    ]  # fmt: skip
    assert plan["steps"] == len(ranks[0]) / 2
    batches = [list(loader) for loader in ranks]
    tokens = np.array([[b.num_tokens for b in mine] for mine in batches]).reshape(2, -1, 2)
    ids = [i for mine in batches for b in mine for i in b.ids]
    assert plan["left_out"] == SAMPLES - sum(i >= 0 for i in ids)
    assert plan["fillers"] == pytest.approx(sum(i < 0 for i in ids) / len(ids))
    loads = tokens.sum(axis=2)
    ratios = loads.max(axis=0) / loads.mean(axis=0)
    assert plan["balance"]["tokens"]["mean"] == pytest.approx(ratios.mean())
    assert plan["balance"]["tokens"]["p95"] == pytest.approx(np.quantile(ratios, 0.95))
    samples = np.array([[b.num_samples for b in mine] for mine in batches]).reshape(2, -1, 2)
    idle = (samples.sum(axis=2) == 0).any(axis=0).sum()
    assert plan["steps_with_idle_rank"] == idle
    if kind in ("tokens", "length"):
        assert plan["fill"] == pytest.approx(tokens.mean() / {"tokens": 19, "length": 24}[kind])
    if kind == "length":
        assert plan["padding"] == pytest.approx(1 - tokens.sum() / (np.ceil(tokens / 12) * 12).sum())
    else:
        assert plan["padding"] is None
    text = run(capsys, index, "--recipe", name, *args)[1]
    assert f'2 ranks x 2 micro-batches, end="{end}":' in text
    assert f"with a rank without a sample: {idle} of {plan['steps']}" in text
    assert f"max/mean tokens  {ratios.mean():.3f} over the ranks of a step" in text


@pytest.mark.parametrize(
    ("oversize", "said"),
    [
        ("error", 'these raise Oversize, unless oversize="skip", or "shrink" where the recipe can'),
        ("skip", "these are skipped"),
        ("shrink", "these are shrunk and come, or raise Oversize where the recipe cannot"),
    ],
)
def test_samples_larger_than_a_micro_batch_are_counted(
    index: str, oversize: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    batching = f"TokenBudget(6, oversize='{oversize}')"
    out = run(capsys, index, "--recipe", "tests.system.recipes:Tokens", "--batching", batching)[1]
    large = sum(i % 7 + 1 > 6 for i in range(SAMPLES))
    assert f"{large} of them larger than a micro-batch: {said}" in out
    assert f"epoch 0 with {batching}, ".replace(", oversize='error'", "") in out


def test_failures_are_counted_and_named_with_a_plan_as_without(
    index: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [index, "--recipe", RECIPE, "--param", "failing=[0,2,4]"]
    plain = run(capsys, *args)
    for expression in ("FixedBatch(4)", "TokenBudget(16)"):
        code, out, err = run(capsys, *args, "--batching", expression)
        assert (code, err) == (plain[0], plain[2]) == (0, "")
        assert out.startswith(plain[1])
        assert out.count("raised KeyError: 'caption'") == 3
        assert "  failed           3 samples, they hold places without costs: masked, unless on_bad=" in out
        found = json.loads(run(capsys, *args, "--batching", expression, "--json")[1])
        assert [text.partition(":")[0] for text in found["failed"]] == ["000.png", "002.png", "004.png"]
    assert "  failed " not in run(capsys, *args[:3], "--batching", "FixedBatch(4)")[1]


def test_those_that_are_too_large_are_named(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    args = [index, "--recipe", "tests.system.recipes:Tokens", "--batching", "TokenBudget(5)"]
    large = [f"{i:03d}.png" for i in range(SAMPLES) if i % 7 + 1 > 5]
    out = run(capsys, *args)[1].splitlines()
    assert out[-11:] == [
        *(f"too large  {name}" for name in large[:10]),
        f"{'':11}and 6 more (--json lists all)",
    ]
    assert json.loads(run(capsys, *args, "--json")[1])["too_large"] == large
    code, out_, err = run(capsys, *args[:-1], "Packed(1, max_patches=1)")
    assert (code, out_) == (1, "")
    assert re.search(r"all 60 samples are larger than a micro-batch, such as sample \d+ \(\d+\.png\)", err)


def test_folders_and_files_are_described_as_loaders_take_them(
    index: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = os.path.dirname(index)
    monkeypatch.setenv("HELIX_CACHE", str(tmp_path_factory.mktemp("cache")))
    some = [os.path.join(folder, f"{i:03d}.png") for i in range(20)]
    for source in (folder, some):
        loader = hx.Loader(source, recipe=Tokens(), batching=hx.TokenBudget(19), backend="inline")
        with pytest.raises(TypeError) as raised:
            len(loader)
        words = shlex.split(str(raised.value).partition("make them with: ")[2])
        assert words[:2] == ["helixctl", "describe"]
        assert words[2:-2] == ([folder] if source == folder else some)
        code, _, err = run(capsys, *words[2:])
        assert (code, err) == (0, "")
        assert len(loader) == len(list(loader))


def test_rows_are_told_from_an_index(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, index, "--recipe", RECIPE, "--json")[1])["output"]
    code, _, err = run(capsys, found, "--recipe", RECIPE)
    assert code == 1
    assert f"{found}: no index, but what recipe {RECIPE} declares of the samples of one;" in err


CLIP = "libhelix.recipes:Clip"


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["--recipe", CLIP, "--param", "frame=8"], 2, "--param frame=8: Clip has no parameter 'frame'"),
        (["--recipe", CLIP, "--param", "frames=x"], 2, '--param frames="x": Expected int | null, got str'),
        (["--recipe", CLIP, "--param", "frames"], 2, "--param frames: write name=value"),
        (["--recipe", CLIP, "--param", "frames=1", "--param", "frames=2"], 2, "frames is given twice"),
        (["--recipe", CLIP, "--param", "size=[1,true]"], 2, "--param size=[1, true]: Expected int"),
        (["--recipe", CLIP], 2, f"--recipe {CLIP}: Clip needs exactly one of frames= and rate="),
        (["--recipe", CLIP, "--param", "frames=2"], 1, "describe failed for all 60 samples; the first"),
        (["--recipe", "Clip"], 2, "write module:Class"),
        (["--recipe", "no_such:Clip"], 2, "--recipe no_such:Clip: ModuleNotFoundError"),
        (["--recipe", "libhelix.recipe:Rng"], 2, "not a subclass of libhelix.Recipe"),
        (["--recipe", RECIPE, "--ranks", "2"], 2, "--ranks is of a plan; add --batching"),
        (["--recipe", RECIPE, "--shuffle-block", "2"], 2, "--shuffle-block is of a plan; add --batching"),
        (["--recipe", RECIPE, "--batching", "FixedBatch(61)"], 2, "has 60 samples and one step takes 61"),
        ([], 2, "Missing option '--recipe'"),
    ],
)
def test_failures(index: str, args: list[str], code: int, text: str, capsys: Any) -> None:
    got, out, err = run(capsys, index, *args)
    assert (got, out) == (code, "")
    assert text in err
    assert list(Path(index).parent.glob("*.rows.arrow*")) == []


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("80", "write one of FixedBatch(8), TokenBudget(16384), Packed(8192) and Buckets(65536)"),
        ("Bucket(80)", "write one of FixedBatch(8), TokenBudget("),
        ("__import__('os').system('x')", "write one of FixedBatch(8), TokenBudget("),
        ("Buckets(80", "'(' was never closed"),
        ("Buckets()", "compute is missing; Buckets has: compute, power, max_samples, max_bytes, per_step"),
        ("Buckets(80, tokens=3)", "no argument tokens; Buckets has: compute, power"),
        ("Buckets(80, **{'power': 2})", "no argument **; Buckets has"),
        ("Buckets(80, compute=3)", "compute is given twice"),
        ("FixedBatch(1, 2, 3, 4, 5)", "5 arguments; FixedBatch has: samples, max_bytes, per_step, regroup"),
        ("TokenBudget(2 * n)", "tokens=2 * n is no literal; write a number or a text in quotes"),
        ("TokenBudget(0)", "tokens=0 must be int >= 1"),
        ("TokenBudget('many')", "tokens='many' must be int, got str"),
        ("TokenBudget(9, oversize='cut')", 'oversize=\'cut\' must be "error", "shrink" or "skip"'),
        ("Buckets(80, same_kind='all')", 'same_kind=\'all\' must be "batch" or "step"'),
    ],
)
def test_a_batching_that_is_none_names_the_argument_and_what_it_may_be(
    index: str, expression: str, text: str, capsys: Any
) -> None:
    code, out, err = run(capsys, index, "--recipe", RECIPE, "--batching", expression)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: --batching {expression}: ")
    assert text in err


def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    index: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(path_of(Index.open(index), Patchy(deadly=0)))
    path.write_text("mine")
    code, _, err = run(capsys, index, "--recipe", RECIPE, "--param", "deadly=0")
    assert code == 1
    assert "it is not replaced: put the index where you can write" in err
    assert path.read_text() == "mine"


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "Example: helixctl describe train.arrow --recipe" in out


def _command(folder: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "libhelix.ctl", "describe", "x.arrow", *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_recipe_of_this_folder_is_found_and_what_it_prints_is_no_result(index: str) -> None:
    folder = os.path.dirname(index)
    Path(folder, "mine.py").write_text(MINE)
    out, err = _command(folder, "--recipe", "mine:Mine", "--param", "n=3", "--json").communicate(timeout=60)
    assert json.loads(out)["params"] == {"n": 3, "wait_s": 0.0}
    assert err == "imported\n"
    assert "n" in _command(folder, "--recipe", "mine:Mine").communicate(timeout=60)[1]


def test_ctrl_c_leaves_nothing(index: str) -> None:
    folder = os.path.dirname(index)
    Path(folder, "mine.py").write_text(MINE)
    command = _command(folder, "--recipe", "mine:Mine", "--param", "n=3", "--param", "wait_s=0.5")
    deadline = time.monotonic() + 60
    while not Path(folder, "begun").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(command.pid, signal.SIGINT)
    _, err = command.communicate(timeout=60)
    assert command.returncode == 130
    assert err.endswith("stopped\n")
    assert list(Path(folder).glob("*.rows.arrow*")) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(command.pid, 0)

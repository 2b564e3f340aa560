"""What is wrong is said on every rank: what, where and the cure; and it ends there."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import libhelix as hx
from libhelix.errors import (
    Conflict,
    IndexProblem,
    ProtocolError,
    RecipeNotImportable,
    UsageError,
)
from libhelix.index.build import build
from libhelix.wire import channel, codec
from libhelix.wire import messages as m
from tests.clips import make_clip
from tests.system.processes import ROOT, Trainer
from tests.system.recipes import Plain


def _both_fail(index: Path, job: str, text: str, **options: Any) -> None:
    """Two ranks; each ends with exit code 1 and an error that says this."""
    trainers = [Trainer(index, job, dp_rank=r, dp_size=2, samples=1, **options) for r in range(2)]
    for trainer in trainers:
        events, stderr = trainer.finish(1)
        raised = [line for line in stderr.splitlines() if line.startswith("libhelix.errors.")]
        assert [line for line in raised if text in line], stderr
        assert not [e for e in events if e["event"] == "end"]


def test_a_recipe_that_fails_in_describe_ends_the_job_on_every_rank(index: Path, job: str) -> None:
    _both_fail(index, job, "BadDescribe raised KeyError: 'caption'", recipe="BadDescribe")


def test_a_recipe_that_fails_in_fill_ends_the_job_on_every_rank(index: Path, job: str) -> None:
    _both_fail(index, job, "BadFill raised ZeroDivisionError: a mistake of mine", recipe="BadFill")


def test_a_wrong_field_is_named(index: Path, job: str) -> None:
    _both_fail(index, job, "WrongField: field 'video' has dtype 'float8'", recipe="WrongField")


def test_a_shape_that_does_not_fit_its_layout_is_named(index: Path, job: str) -> None:
    _both_fail(index, job, "field 'x' is stacked and has shape", recipe="Restless")


def test_a_recipe_that_kills_its_workers_on_import_does_not_go_on_for_ever(index: Path, job: str) -> None:
    _both_fail(index, job, "workers end by signal 9 while they load recipe", recipe="Suicidal")


def test_a_recipe_that_describes_otherwise_every_time_is_told_so(index: Path, job: str) -> None:
    # Whoever described a sample may remember it: in the end another one fills it.
    _both_fail(index, job, "Impure.describe gave other shapes for", recipe="Impure", epochs=None)


def _script(
    folder: Path, job: str, code: str, *, code_file: str = "train.py"
) -> subprocess.CompletedProcess[str]:
    (folder / code_file).write_text(code)
    return subprocess.run(
        [sys.executable, code_file],
        cwd=folder,
        env={**os.environ, "HELIX_JOB": job, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


TRAIN = """
import libhelix as hx
{recipe}
if __name__ == "__main__":
    with hx.Loader({index!r}, recipe={made}, batching=hx.FixedBatch(2)) as loader:
        for batch in loader:
            print(batch.step)
"""


def test_a_recipe_in_main_is_refused_with_the_cure(index: Path, job: str, tmp_path: Path) -> None:
    recipe = "class Mine(hx.recipes.Clip, frozen=True):\n    pass\n"
    done = _script(tmp_path, job, TRAIN.format(recipe=recipe, index=str(index), made="Mine(frames=2)"))
    assert done.returncode == 1
    assert "RecipeNotImportable: __main__:Mine: workers import recipes by that name" in done.stderr
    assert "move it to a module" in done.stderr


def test_a_recipe_in_a_module_beside_the_script_works(index: Path, job: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import libhelix as hx\nclass Mine(hx.recipes.Clip, frozen=True):\n    pass\n"
    )
    code = TRAIN.format(recipe="import mine", index=str(index), made="mine.Mine(frames=2)")
    done = _script(tmp_path, job, code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "1", "2", "3"]


def test_a_module_that_cannot_be_imported_in_a_worker_is_named(index: Path, job: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import sys\nif 'train' not in sys.argv[0]:\n    import not_there\n"
        "import libhelix as hx\nclass Mine(hx.recipes.Clip, frozen=True):\n    pass\n"
    )
    code = TRAIN.format(recipe="import mine", index=str(index), made="mine.Mine(frames=2)")
    done = _script(tmp_path, job, code)
    assert done.returncode == 1
    assert "recipe mine:Mine cannot be imported in a worker: ModuleNotFoundError" in done.stderr
    assert "not_there" in done.stderr


def test_what_is_no_recipe_is_refused(index: Path) -> None:
    with pytest.raises(UsageError, match=r"no libhelix\.Recipe"):
        hx.Loader(index, recipe="clip", batching=hx.FixedBatch(2))  # type: ignore[arg-type]

    class Local(Plain, frozen=True):
        pass

    with pytest.raises(RecipeNotImportable, match="move it to a module"):
        hx.Loader(index, recipe=Local(), batching=hx.FixedBatch(2))


def test_settings_out_of_bounds_are_refused(index: Path) -> None:
    for wrong in ({"epochs": 0}, {"ring": 0}, {"replica": 1}, {"dp_rank": 1}, {"dp_rank": 2, "dp_size": 2}):
        with pytest.raises(UsageError):
            hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2), **wrong)  # type: ignore[arg-type]
    for name, value, said in (
        ("batching", hx.FixedBatch(0), "batching.samples=0: must be int >= 1"),
        ("batching", 2, "batching=2 is none of FixedBatch, TokenBudget, Packed and Buckets; write batching="),
        ("batching", hx.TokenBudget(0), "batching.tokens=0: must be int >= 1"),
        ("batching", hx.FixedBatch(2, per_step=3), "per_step=3 samples do not fit 1 ranks"),
        ("batching", hx.FixedBatch(9), "the data set has 8 samples and one step takes 9"),
        ("end", "stop", 'end=\'stop\'; use "drop" or "pad"'),
        ("on_bad", "skip", 'on_bad=\'skip\'; use "mask", "replace" or "raise"'),
        ("bad_budget", 3, "bad_budget=3; write bad_budget=hx.BadBudget(count=100)"),
        ("bad_budget", hx.BadBudget(rate=2.0), "bad_budget.rate=2.0: must be float <= 1"),
        ("seed", "x", "seed='x': must be int, got str"),
    ):
        options: dict[str, Any] = {"batching": hx.FixedBatch(2), name: value}
        with pytest.raises(UsageError, match=re.escape(said)):
            hx.Loader(index, recipe=Plain(), **options)


def test_a_rank_that_attaches_twice_is_an_error_on_both(index: Path, job: str) -> None:
    options = {"dp_rank": 0, "dp_size": 2, "samples": 1, "epochs": 4}
    first = Trainer(index, job, **options, step_by_step=True)
    first.event("batch")
    _, stderr = Trainer(index, job, **options).finish(1)
    assert "Conflict: loader 'train' of job" in stderr
    assert "rank 0 is attached twice, by two processes; give each its own dp_rank" in stderr
    first.go()
    _, stderr = first.finish(1)
    assert "rank 0 is attached twice" in stderr


def test_two_loaders_of_one_name_in_one_process_are_told_how_to_live_side_by_side(
    index: Path, job: str
) -> None:
    first = hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2))
    second = hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2))
    with first, second:
        next(iter(first))
        with pytest.raises(Conflict, match=r"close\(\) the first loader; loaders .* want a name= of"):
            next(iter(second))


def test_ranks_with_different_settings_are_an_error_on_both_that_names_the_setting(
    index: Path, job: str
) -> None:
    options: dict[str, Any] = {"dp_size": 2, "samples": 1, "epochs": 4}
    first = Trainer(index, job, dp_rank=0, seed=1, **options, step_by_step=True)
    first.event("batch")
    other = Trainer(index, job, dp_rank=1, seed=2, parameters={"size": [32, 32]}, **options)
    _, stderr = other.finish(1)
    assert "recipe.params.size [48, 64] there, [32, 32] here; seed 1 there, 2 here" in stderr
    first.go()
    _, stderr = first.finish(1)
    assert "rank 1 has other settings" in stderr


def test_a_daemon_of_another_protocol_version_is_refused_by_name(index: Path, job: str) -> None:
    with channel.new_socket() as listener:
        listener.bind(f"\0helix/{os.geteuid()}/{job}")
        listener.listen()

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                hello = codec.hello(sock.recv(1 << 16))
                text = (
                    f"helixd 9 speaks protocol 9, libhelix {hello.version} speaks protocol {hello.protocol}"
                )
                channel.send(sock, codec.encode(m.Refused("protocol", text)))

        server = threading.Thread(target=serve)
        server.start()
        loader = hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2))
        said = rf"helixd 9 speaks protocol 9, libhelix .* speaks protocol {m.PROTOCOL}"
        with pytest.raises(ProtocolError, match=said):
            next(iter(loader))
        server.join()


def test_an_unreachable_daemon_is_named_with_the_cure(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIX_SOCKET", str(tmp_path / "no.sock"))
    loader = hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2))
    said = r"no helixd at .*no\.sock .*; start it with helixd run --socket .*no\.sock, or unset HELIX_SOCKET"
    with pytest.raises(hx.HelixError, match=said):
        next(iter(loader))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(str(tmp_path / "no.sock"))


def test_a_file_that_is_no_media_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.mp4").write_text("<html>not found</html>")
    with pytest.raises(IndexProblem, match=r"x\.mp4"):
        hx.Loader(tmp_path / "x.mp4", recipe=Plain(), batching=hx.FixedBatch(1))
    with pytest.raises(IndexProblem, match="gone"):
        hx.Loader(tmp_path / "gone", recipe=Plain(), batching=hx.FixedBatch(1))
    (tmp_path / "empty").mkdir()
    with pytest.raises(IndexProblem, match="empty"):
        hx.Loader(tmp_path / "empty", recipe=Plain(), batching=hx.FixedBatch(1))


def _spoiled(folder: Path) -> Path:
    for i in range(6):
        make_clip(folder / f"{i}.mp4", 20, size=(64, 96))
    path = folder.parent / "spoiled.arrow"
    build([folder], path)
    (folder / "4.mp4").write_bytes(b"no longer a video")
    return path


def test_a_file_that_changed_is_masked_with_a_warning_that_names_it(tmp_path: Path, job: str) -> None:
    (tmp_path / "clips").mkdir()
    index = _spoiled(tmp_path / "clips")
    events, _ = Trainer(index, job, samples=3, epochs=2).finish()
    for batch in [e for e in events if e["event"] == "batch"]:
        assert batch["valid"] == [not k.endswith("4.mp4") for k in batch["keys"]]
    (warning, *_) = events[-1]["warnings"]
    assert "a sample is masked: " in warning
    assert "4.mp4: changed since it was indexed; run helixctl index again" in warning


def test_on_bad_raise_ends_every_rank_at_the_same_step(tmp_path: Path, job: str) -> None:
    (tmp_path / "clips").mkdir()
    index = _spoiled(tmp_path / "clips")
    ranks = [
        Trainer(index, job, dp_rank=r, dp_size=2, samples=1, epochs=5, on_bad="raise", step_by_step=True)
        for r in range(2)
    ]
    last: dict[int, str] = {}
    steps = 0
    while not last:  # in lock-step, as an all-reduce would have it
        for r, rank in enumerate(ranks):
            ended = rank.step()
            if ended is not None:
                last[r] = ended
        steps += 1
    assert last.keys() == {0, 1}
    assert steps <= 6
    for stderr in last.values():
        assert "MediaError" in stderr
        assert "4.mp4: changed since it was indexed" in stderr
    for rank in ranks:
        assert rank.process.returncode == 1


def test_a_variable_that_the_private_daemon_refuses_ends_the_job_at_once(index: Path, job: str) -> None:
    _, stderr = Trainer(index, job, env={"HELIX_CORES": "abc"}).finish(1)
    assert "helixd: HELIX_CORES: 'abc' is no list of cores; write it like 0-3,8" in stderr
    assert "UsageError: helixd does not start with these settings" in stderr

"""An index is brought up to date by opening what is new; the result is that of a build from scratch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libhelix.index import known as knowing
from libhelix.index import schema
from libhelix.index.build import build
from libhelix.index.formats import Member, Options
from libhelix.index.journal import path_of
from libhelix.index.known import Known
from libhelix.index.probing import Progress
from libhelix.index.read import Index
from libhelix.index.scan import Answer
from libhelix.recipe import Item, Sample
from tests.clips import make_clip
from tests.index.sources import image, indexed, probe_here, tar

ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return probe_here(monkeypatch)


@pytest.fixture
def media(tmp_path: Path) -> Path:
    folder = tmp_path / "media"
    folder.mkdir()
    for i in range(5):
        (folder / f"{i}.png").write_bytes(image(i))
    make_clip(folder / "c.mp4", 6)
    return folder


def bare(paths: list[str]) -> list[str]:
    return sorted(os.path.basename(p) for p in paths)


def test_only_new_and_changed_files_are_opened(media: Path, tmp_path: Path, here: list[str]) -> None:
    output = tmp_path / "x.arrow"
    _, report = indexed(media, output=output)
    assert (report.added, report.changed, report.removed, report.reused) == (6, 0, 0, 0)
    here.clear()
    first, report = indexed(media, output=output)
    assert (here, report.added, report.changed, report.removed, report.reused) == ([], 0, 0, 0, 6)
    (media / "1.png").write_bytes(image(7, size=(40, 50)))
    os.utime(media / "2.png", ns=(1, 1))
    (media / "3.png").unlink()
    (media / "9.png").write_bytes(image(9))
    index, report = indexed(media, output=output)
    assert bare(here) == ["1.png", "2.png", "9.png"]
    assert (report.added, report.changed, report.removed, report.reused) == (1, 2, 1, 3)
    assert [s.key for s in index] == ["0.png", "1.png", "2.png", "4.png", "9.png", "c.mp4"]
    fresh, _ = indexed(media, output=tmp_path / "y.arrow")
    assert list(index) == list(fresh)
    assert index.fingerprint == fresh.fingerprint != first.fingerprint


def test_a_size_alone_tells_a_change(media: Path, tmp_path: Path, here: list[str]) -> None:
    before = os.stat(media / "1.png").st_mtime_ns
    indexed(media, output=tmp_path / "x.arrow")
    (media / "1.png").write_bytes(image(1, size=(200, 300)))
    os.utime(media / "1.png", ns=(before, before))
    here.clear()
    index, _ = indexed(media, output=tmp_path / "x.arrow")
    assert bare(here) == ["1.png"]
    assert list(index) == list(indexed(media, output=tmp_path / "y.arrow")[0])


def test_rebuild_opens_everything(media: Path, tmp_path: Path, here: list[str]) -> None:
    output = tmp_path / "x.arrow"
    build([media], output)
    here.clear()
    assert build([media], output, rebuild=True).reused == 0
    assert len(here) == 6


def test_other_rules_open_everything(
    media: Path, tmp_path: Path, here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed(media, output=tmp_path / "x.arrow")
    here.clear()
    monkeypatch.setattr(knowing, "PROBING", "another")
    indexed(media, output=tmp_path / "x.arrow")
    assert len(here) == 6
    assert Index.open(tmp_path / "x.arrow").probing == schema.PROBING


def test_names_follow_the_source_and_not_the_index_of_before(
    media: Path, tmp_path: Path, here: list[str]
) -> None:
    (media / "x.jsonl").write_text('{"image": "1.png"}')
    output = tmp_path / "x.arrow"
    indexed(media / "x.jsonl", output=output)
    index, _ = indexed(media / "1.png", output=output)
    assert [i.name for i in index[0].items] == [""]
    index, _ = indexed(media / "x.jsonl", output=output)
    assert [i.name for i in index[0].items] == ["image", "json"]


def test_a_build_that_broke_off_goes_on_where_it_was(media: Path, tmp_path: Path, here: list[str]) -> None:
    output = tmp_path / "x.arrow"

    def stop(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build([media], output, jobs=1, progress=stop)
    assert not output.exists()
    done = len(here) - 1  # the answer during which it stopped is not written down
    with open(path_of(str(output)), "ab") as file:
        file.write(b'[["/torn')

    def stop_again(done: int, total: int) -> None:
        if done == 6:
            raise KeyboardInterrupt

    here.clear()
    with pytest.raises(KeyboardInterrupt):
        build([media], output, jobs=1, progress=stop_again)
    assert len(here) == 6 - done
    here.clear()
    report = build([media], output, jobs=1)
    assert (report.samples, report.reused) == (6, 5)
    assert len(here) == 1
    assert not os.path.exists(path_of(str(output)))
    assert report.fingerprint == build([media], tmp_path / "y.arrow").fingerprint


def test_a_killed_program_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "media"
    folder.mkdir()
    for i in range(300):
        (folder / f"{i:03}.png").write_bytes(image(i % 9))
    output, partial = tmp_path / "x.arrow", Path(path_of(str(tmp_path / "x.arrow")))
    slow = (
        "import libhelix.index.probing as p\n"
        "p._SCAN = 'import time, libhelix.media as m, libhelix.index.scan as s\\n"
        "real = m.probe_file\\n"
        "m.probe_file = lambda path: (time.sleep(0.01), real(path))[1]\\n"
        "s.main()'\n"
        "p._MOST_PER_QUESTION = 10\n"
        f"from libhelix.index.build import build; build([{str(folder)!r}], {str(output)!r}, jobs=1)"
    )
    started = subprocess.Popen([sys.executable, "-c", slow], cwd=ROOT, start_new_session=True)
    deadline = time.monotonic() + 60
    while not partial.exists() or partial.read_bytes().count(b"\n") < 50:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    assert not output.exists()
    report = build([folder], output, jobs=1)
    assert report.samples == 300
    assert report.reused >= 40
    assert not partial.exists()


def test_an_item_of_a_lone_file_is_not_taken_for_a_field_of_that_name() -> None:
    lone = Item(kind="tensor", path="/r/a.npz", offset=0, size=9, mtime_ns=1, name="image")
    known = Known([Sample(0, "a.npz", (lone,))], "/r")
    assert known.answer(Member("image", "/r/a.npz", 0, 9, 1)) is None
    assert known.answer(Member("", "/r/a.npz", 0, 9, 1)) == Answer((lone,))


def test_several_items_of_one_member_keep_their_order_and_names() -> None:
    each = [
        Item(kind=kind, path="/r/a.tar", offset=512, size=9, mtime_ns=1, name=name)
        for kind, name in (("video", "mp4"), ("audio", "mp4"), ("tensor", "mp4.b"), ("tensor", "mp4.a"))
    ]
    other = Item(kind="image", path="/r/a.tar", offset=1024, size=9, mtime_ns=1, name="jpg")
    known = Known([Sample(0, "0", (*each, other))], "/r")
    found = known.answer(Member("mp4", "/r/a.tar", 512, 9, 1, whole=False))
    assert found is not None
    assert [(i.kind, i.name) for i in found.items] == [
        ("video", ""),
        ("audio", ""),
        ("tensor", "b"),
        ("tensor", "a"),
    ]
    assert known.answer(Member("mp4", "/r/a.tar", 512, 10, 1, whole=False)) is None
    assert known.answer(Member("mp4", "/r/a.tar", 512, 9, 2, whole=False)) is None


def test_a_journal_of_other_rules_is_not_read(media: Path, tmp_path: Path, here: list[str]) -> None:
    output = tmp_path / "x.arrow"
    Path(path_of(str(output))).write_bytes(b'["helix.partial",1,"older"]\njunk\n')
    assert build([media], output).reused == 0
    assert not os.path.exists(path_of(str(output)))


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "change", "touch", "remove", "shard", "lines", "break", "interrupt"]),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=8,
)


@given(actions=ACTIONS, group=st.sampled_from(["", "stem"]))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_index_kept_up_to_date_equals_one_from_scratch(
    actions: list[tuple[str, int]], group: Literal["", "stem"], here: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, output = Path(name, "media"), Path(name, "x.arrow")
        folder.mkdir()
        (folder / "always.png").write_bytes(image())
        sources: list[Path | str] = [folder]
        for step, (what, i) in enumerate(actions):
            interrupted = _act(folder, sources, what, i, step)
            try:
                build(
                    sources,
                    output,
                    jobs=1,
                    progress=_stop_at(1 + i) if interrupted else None,
                    options=Options(group=group),
                )
            except KeyboardInterrupt:
                continue
            fresh = build(sources, Path(name, "y.arrow"), rebuild=True, jobs=1, options=Options(group=group))
            kept, new = Index.open(output), Index.open(Path(name, "y.arrow"))
            assert list(kept) == list(new)
            assert kept.fingerprint == new.fingerprint == fresh.fingerprint
            assert (kept.refused, kept.root) == (new.refused, new.root)


def _stop_at(n: int) -> Progress:
    def stop(done: int, total: int) -> None:
        if done >= n:
            raise KeyboardInterrupt

    return stop


def _act(folder: Path, sources: list[Path | str], what: str, i: int, step: int) -> bool:
    """One change to the sources; whether the build after it is interrupted."""
    file = folder / f"{i}.png"
    if what in ("add", "change"):
        file.write_bytes(image(step, size=(24 + step, 36)))
        (folder / f"{i}.txt").write_text(str(step))
    elif what == "touch" and file.exists():
        os.utime(file, ns=(step + 1, step + 1))
    elif what == "break" and file.exists():
        file.write_bytes(b"junk")
    elif what == "remove" and file.exists():
        file.unlink()
    elif what == "shard":
        tar(folder / f"{i}.tar", [(f"{k}.png", image(step, size=(24, 36 + k))) for k in range(i)])
    elif what == "lines":
        lines = "".join(f'{{"image": "{k}.png"}}\n' for k in range(i))
        (folder / "x.jsonl").write_text(lines + '{"text": 1}\n')
        if folder / "x.jsonl" not in sources:
            sources.append(folder / "x.jsonl")
    return what == "interrupt"

"""Sources that tests build: pictures as bytes, tars member by member, and what an index says of them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from PIL import Image as Pil

from libhelix.index import probing, scan
from libhelix.index.build import BuildReport, build
from libhelix.index.formats import Member, Options
from libhelix.index.read import Index
from tests.clips import picture


def image(number: int = 0, kind: str = "png", size: tuple[int, int] = (24, 36)) -> bytes:
    """An image file that carries a number."""
    body = io.BytesIO()
    Pil.fromarray(picture(number, size)).save(body, kind)
    return body.getvalue()


def tar(path: Path, members: Iterable[tuple[str, bytes]], *, form: int = tarfile.USTAR_FORMAT) -> Path:
    """A tar of (name, content), which may come twice."""
    with tarfile.open(path, "w", format=form) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def indexed(*sources: Path | str, output: Path, **options: object) -> tuple[Index, BuildReport]:
    """The index of sources, and the report of its build."""
    report = build(list(sources), output, options=Options(**options), jobs=1)  # type: ignore[arg-type]
    return Index.open(output), report


def names(index: Index) -> dict[str, list[tuple[str, str]]]:
    """(kind, name) of the items of every sample, by key."""
    return {sample.key: [(i.kind, i.name) for i in sample.items] for sample in index}


def reasons(report: BuildReport) -> str:
    """All that was refused, a line each."""
    return "\n".join(reason for _, reason in report.refused)


def probe_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Probe in this process, for speed; the list fills with the labels or paths of what is opened."""
    opened: list[str] = []

    def asked(questions: list[list[Member]], processes: int) -> Iterable[object]:
        del processes
        for question in questions:
            opened.extend(member.label or member.path for member in question)
            yield question, [scan.probe(member) for member in question]

    monkeypatch.setattr(probing, "_asked", asked)
    return opened

"""Which samples are whole, from listings and answers alone."""

from __future__ import annotations

from libhelix.index.assemble import samples_of
from libhelix.index.formats import Draft, Listing, Member
from libhelix.index.scan import Answer
from libhelix.recipe import Item


def member(name: str, number: int) -> Member:
    return Member(name, "/a.tar", number, 9, 1, whole=False, label=f"/a.tar: {name}")


def item(kind: str, number: int, name: str = "") -> Item:
    return Item(kind=kind, path="/a.tar", offset=number, size=9, mtime_ns=1, name=name)


def test_a_silent_film_among_others_lacks_nothing() -> None:
    members = [member("mp4", i) for i in range(3)]
    answers = {m.place: Answer((item("video", i), item("audio", i))) for i, m in enumerate(members)}
    answers[members[2].place] = Answer((item("video", 2),))
    listing = Listing("/a.tar", [Draft(str(i), (m,)) for i, m in enumerate(members)], alike=True)
    found, refused = samples_of(listing, answers, keep_incomplete=False)
    assert [key for _, (key, _) in found] == ["0", "1", "2"]
    assert [(i.kind, i.name) for i in found[0][1][1]] == [("video", "mp4"), ("audio", "mp4")]
    assert refused == []


def test_several_arrays_of_a_member_are_named_below_it() -> None:
    one = member("npz", 0)
    answers = {one.place: Answer((item("tensor", 0, "a"), item("tensor", 0, "b")))}
    found, _ = samples_of(Listing("/a.tar", [Draft("0", (one,))]), answers, keep_incomplete=False)
    assert [i.name for i in found[0][1][1]] == ["npz.a", "npz.b"]


def test_a_reason_begins_with_the_place_once() -> None:
    one = member("png", 0)
    answers = {one.place: Answer(refused="/a.tar: broken png header; fetch it again")}
    found, refused = samples_of(Listing("/a.tar", [Draft("0", (one,))]), answers, keep_incomplete=False)
    assert found == []
    assert refused == [("/a.tar", "/a.tar: png: broken png header; fetch it again")]

"""Conversations: who says what, and which item each place holder stands for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from libhelix.errors import MediaError
from libhelix.media.conversation import Conversation, Slot, of_sample, parse
from libhelix.recipe import Item, Sample


def item(kind: str, path: str, name: str = "", offset: int = 0, size: int = 1) -> Item:
    return Item(kind=kind, path=path, offset=offset, size=size, mtime_ns=0, name=name)


def llava(*values: str, **more: Any) -> str:
    sides = ("human", "gpt")
    turns = [{"from": sides[i % 2], "value": value} for i, value in enumerate(values)]
    return json.dumps({"conversations": turns, **more})


def said(talk: Conversation) -> list[tuple[str, list[str]]]:
    """The turns, with the path of each slot's item."""
    return [
        (turn.role, [f"[{p.item.path}]" if isinstance(p, Slot) else p for p in turn.content])
        for turn in talk.turns
    ]


def test_place_holders_of_llava_stand_for_the_items_of_their_kind_in_order() -> None:
    items = [item("image", "a.png"), item("image", "b.png"), item("video", "c.mp4"), item("text", "x")]
    talk = parse(llava("<image>\nOr <video><image> ?", "Both. "), items, "k")
    assert said(talk) == [
        ("user", ["[a.png]", "\nOr ", "[c.mp4]", "[b.png]", " ?"]),
        ("assistant", ["Both. "]),
    ]
    assert [slot.kind for slot in talk.slots] == ["image", "video", "image"]


def test_messages_have_content_as_a_text_or_as_a_list() -> None:
    line = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [{"type": "image"}, {"type": "text", "text": "A <b> tag"}, {"video": "c"}],
            },
            {"role": "assistant", "content": "No."},
            {"role": "user", "content": "And <image>?"},
        ]
    }
    items = [item("image", "a.png"), item("image", "b.png"), item("video", "c.mp4")]
    assert said(parse(json.dumps(line), items, "k")) == [
        ("system", ["Be brief."]),
        ("user", ["[a.png]", "A <b> tag", "[c.mp4]"]),
        ("assistant", ["No."]),
        ("user", ["And ", "[b.png]", "?"]),
    ]


def test_in_a_list_text_is_text() -> None:
    line = {"messages": [{"role": "user", "content": [{"type": "text", "text": "write <image> for it"}]}]}
    assert said(parse(json.dumps(line), [], "k")) == [("user", ["write <image> for it"])]


def test_settings_are_those_of_the_element_then_of_the_line() -> None:
    content = [{"type": "video", "fps": 4}, {"type": "video", "max_pixels": None}]
    line = {"fps": 1.5, "max_pixels": 900, "messages": [{"role": "user", "content": content}]}
    one, two = parse(json.dumps(line), [item("video", "a"), item("video", "b")], "k").slots
    assert (one.number("fps"), one.number("max_pixels"), one.number("nframes")) == (4, 900, None)
    assert (two.number("fps"), two.number("max_pixels")) == (1.5, 900)


@pytest.mark.parametrize("value", ["2", True, -1, [2], float("1e300")])
def test_a_setting_that_is_no_number_names_the_file(value: object) -> None:
    (slot,) = parse(llava("<video>", fps=value), [item("video", "a.mp4")], "k").slots
    with pytest.raises(MediaError, match=r"a\.mp4: 'fps' of its conversation"):
        slot.number("fps")


def test_a_place_holder_without_an_item_names_both() -> None:
    with pytest.raises(MediaError, match=r"k: <image> number 2 .* has no image; .* image first \(a\.png\)"):
        parse(llava("<image> <image>", "."), [item("image", "a.png", "first")], "k")
    with pytest.raises(MediaError, match=r"<video> number 1 .* has no media"):
        parse(llava("<video>", "."), [], "k")


def test_an_item_without_a_place_holder_names_both() -> None:
    with pytest.raises(MediaError, match=r"k: no <image> in its text stands for image b\.png"):
        parse(llava("<image>", "."), [item("image", "a.png"), item("image", "b.png")], "k")
    with pytest.raises(MediaError, match=r"nothing that the recipe takes stands for audio s\.wav"):
        parse(llava("<audio>", "."), [item("audio", "s.wav")], "k")


def test_a_file_named_twice_is_needed_twice() -> None:
    twice = [item("image", "a.png", "images/0"), item("image", "a.png", "images/1")]
    assert len(parse(llava("<image><image>", "."), twice, "k").slots) == 2
    with pytest.raises(MediaError, match="no <image> in its text stands for image images/1"):
        parse(llava("<image>", "."), twice, "k")


def test_the_sound_of_a_video_needs_no_place_holder() -> None:
    film = [item("video", "a.mp4"), item("audio", "a.mp4")]
    assert len(parse(llava("<video>", "."), film, "k").slots) == 1
    assert said(parse(llava("<audio>", "."), film, "k", ("audio",))) == [
        ("user", ["[a.mp4]"]), ("assistant", ["."])
    ]  # fmt: skip
    mixed = [*film, item("audio", "b.wav")]
    talk = parse(llava("<video> or <audio>", "."), mixed, "k", ("video", "audio"))
    assert [slot.item.path for slot in talk.slots] == ["a.mp4", "b.wav"]


def test_place_holders_of_other_kinds_are_text() -> None:
    assert said(parse(llava("an <audio> tag", "."), [], "k"))[0] == ("user", ["an ", "<audio>", " tag"])


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ("{", "is no JSON"),
        ("[" * 5000, "is no JSON"),
        ("[]", "a JSON list"),
        ('{"image": "a"}', 'neither "conversations" nor "messages", but image'),
        ('{"conversations": []}', "not a list of turns"),
        ('{"conversations": ["a"]}', "turn 1 is 'a'"),
        ('{"conversations": [{"from": "cat", "value": "a"}]}', "turn 1 is from 'cat'"),
        ('{"conversations": [{"from": ["cat"], "value": "a"}]}', "turn 1 is from"),
        ('{"conversations": [{"from": "gpt"}]}', "turn 1 has the content None"),
        ('{"messages": [{"role": "user", "content": [{"type": "smell"}]}]}', "turn 1 has the content"),
        ('{"messages": [{"role": "user", "content": [{"type": "text"}]}]}', "turn 1 has the content"),
    ],
)
def test_what_is_no_conversation_names_the_sample(raw: str, error: str) -> None:
    with pytest.raises(MediaError, match="key7") as raised:
        parse(raw, [], "key7")
    assert error in str(raised.value)


def test_of_several_texts_the_conversation_is_read(tmp_path: Any) -> None:
    written = llava("Hi", "Ho")
    path = tmp_path / "x.jsonl"
    path.write_text("caption" + written)
    texts = (
        item("text", str(path), "txt", 0, 7), item("text", str(path), "conversations", 7, len(written))
    )  # fmt: skip
    assert said(of_sample(Sample(0, "k", texts)))[1] == ("assistant", ["Ho"])
    with pytest.raises(MediaError, match="needs an item of kind text"):
        of_sample(Sample(0, "k", ()))


def still(name: str) -> Item:
    return item("image", f"{name}.jpg", name)


def films(slots: tuple[Slot, ...]) -> list[list[str]]:
    return [[item.name for item in slot.frames] for slot in slots]


def test_pictures_in_a_list_are_one_video_in_the_order_of_their_numbers() -> None:
    stills = [still(f"video/{i}") for i in (0, 1, 10, 11, 2)] + [still("image")]
    found = parse(llava("<video> and <image>?", "."), stills, "k").slots
    assert [slot.kind for slot in found] == ["video", "image"]
    assert films(found) == [["video/0", "video/1", "video/2", "video/10", "video/11"], []]
    with pytest.raises(MediaError, match="no <video> in its text stands for image video/0"):
        parse(llava("<image>?", "."), stills, "k")
    with pytest.raises(MediaError, match="<video> number 2 in its text has no video"):
        parse(llava("<video><video><image>?", "."), stills, "k")


def test_elements_of_a_message_have_their_own_lists_beside_films() -> None:
    stills = [still("video/0/0"), still("video/0/1"), item("video", "v.mp4", "video/1"), still("video/2/0")]
    found = parse(llava("<video><video><video>?", "."), stills, "k").slots
    assert films(found) == [["video/0/0", "video/0/1"], [], ["video/2/0"]]
    assert [slot.item.path for slot in found] == ["video/0/0.jpg", "v.mp4", "video/2/0.jpg"]


def test_the_picture_of_an_animated_gif_is_no_frame_of_a_list() -> None:
    gif = [item(kind, "a.gif", "video/0") for kind in ("image", "video")]
    (found,) = parse(llava("<video>?", "."), gif, "k").slots
    assert (found.item, found.frames) == (gif[1], ())

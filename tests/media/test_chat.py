"""Chat templates: the text, its tokens, and which of them the assistant says."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libhelix.errors import MediaError, UsageError
from libhelix.media.chat import ChatTemplate, Encoded, Expansion
from libhelix.media.conversation import Conversation, parse
from libhelix.recipe import Item
from tests.chats import make_checkpoint

pytest.importorskip("tokenizers", reason="needs the extra chat")
pytest.importorskip("jinja2", reason="needs the extra chat")

MARKS = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
IMAGE = Item(kind="image", path="a.png", offset=0, size=1, mtime_ns=0)
VIDEO = Item(kind="video", path="b.mp4", offset=0, size=1, mtime_ns=0)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    return ChatTemplate(str(make_checkpoint(tmp_path_factory.mktemp("qwen"))))


def talk(*values: str, items: tuple[Item, ...] = ()) -> Conversation:
    turns = [{"from": ("human", "gpt")[i % 2], "value": value} for i, value in enumerate(values)]
    return parse(json.dumps({"conversations": turns}), items, "key7")


def encoded(template: ChatTemplate, one: Conversation, *expansions: Expansion) -> Encoded:
    return template.encode(template.write(one, MARKS), expansions)


def text(template: ChatTemplate, found: Encoded, targets: bool = False) -> str:
    """What tokens say, all or the targets."""
    ids = found.ids[found.targets] if targets else found.ids
    said: str = template._tokenizer._loaded.decode(ids.tolist(), skip_special_tokens=False)
    return said


def test_what_the_assistant_says_is_a_target_with_its_end(qwen: ChatTemplate) -> None:
    found = encoded(qwen, talk("What?", "A cat.", "And süß?", "日本語 dog."))
    assert text(qwen, found) == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\nA cat.<|im_end|>\n"
        "<|im_start|>user\nAnd süß?<|im_end|>\n<|im_start|>assistant\n日本語 dog.<|im_end|>\n"
    )
    assert text(qwen, found, targets=True) == "A cat.<|im_end|>\n日本語 dog.<|im_end|>\n"


def test_marks_become_expansions(qwen: ChatTemplate) -> None:
    one = talk("<image> or <video>?", "No.", items=(IMAGE, VIDEO))
    times = [("<0.2 seconds>", 1), ("<|video_pad|>", 2), ("<1.5 seconds>", 1), ("<|video_pad|>", 2)]
    found = encoded(qwen, one, [("<|image_pad|>", 3)], times)
    assert (
        "<|vision_start|><|image_pad|><|image_pad|><|image_pad|><|vision_end|> or <|vision_start|><0.2 "
        in (text(qwen, found))
    )
    pads = [qwen.token("<|image_pad|>"), qwen.token("<|video_pad|>")]
    assert [run.slot for run in found.runs] == [0, 1, 1]
    for run, pad in zip(found.runs, (pads[0], pads[1], pads[1])):
        assert found.ids[run.begin : run.begin + run.count].tolist() == [pad] * run.count
    assert sum(run.count for run in found.runs) == sum(1 for token in found.ids if token in pads)
    assert text(qwen, found, targets=True) == "No.<|im_end|>\n"


def test_media_are_no_targets_whoever_shows_them(qwen: ChatTemplate) -> None:
    one = talk("Draw it.", "Here: <video> <image>!", items=(IMAGE, VIDEO))
    found = encoded(qwen, one, [("<0.2 seconds>", 1), ("<|video_pad|>", 2)], [("<|image_pad|>", 3)])
    assert text(qwen, found, targets=True) == (
        "Here: <|vision_start|><|vision_end|> <|vision_start|><|vision_end|>!<|im_end|>\n"
    )


def test_slots_are_in_the_order_of_the_text_of_the_template(tmp_path: Path) -> None:
    pictures_first = (
        "{% for m in messages %}[{{ m.role }}]"
        "{% for p in m.content if p.type == 'video' %}<|video_pad|>{% endfor %}"
        "{% for p in m.content if p.type == 'image' %}<|image_pad|>{% endfor %}"
        "{% for p in m.content if p.type == 'text' %}{{ p.text }}{% endfor %};"
        "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    template = ChatTemplate(str(make_checkpoint(tmp_path, template=pictures_first)))
    written = template.write(talk("<image> <video>", "No.", items=(IMAGE, VIDEO)), MARKS)
    assert written.text == "[user]<|video_pad|><|image_pad|> ;[assistant]No.;"
    assert [slot.kind for slot in written.slots] == ["video", "image"]
    assert [written.text[a:b] for a, b in written.spans] == ["No.;"]


def test_a_template_may_take_texts_only(tmp_path: Path) -> None:
    plain = (
        "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    template = ChatTemplate(str(make_checkpoint(tmp_path, template=plain)))
    written = template.write(talk("a <image>", "b", items=(IMAGE,)), MARKS)
    assert written.text == "user: a <|image_pad|>\nassistant: b\n"
    assert [written.text[a:b] for a, b in written.spans] == ["b\n"]


def test_a_template_may_say_itself_what_is_generated(tmp_path: Path) -> None:
    marked = (
        "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content[0].text }}<|im_end|>{% endgeneration %}{{ '\\n' }}"
        "{% else %}{{ m.content[0].text }}{% endif %}{% endfor %}"
    )
    template = ChatTemplate(str(make_checkpoint(tmp_path, template=marked)))
    found = encoded(template, talk("a", "b", "c", "d"))
    assert text(template, found) == "[user]a[assistant]b<|im_end|>\n[user]c[assistant]d<|im_end|>\n"
    assert text(template, found, targets=True) == "b<|im_end|>d<|im_end|>"


def test_a_template_that_rewrites_earlier_turns_is_refused(tmp_path: Path) -> None:
    forgetful = (
        "{% for m in messages %}[{{ m.role }}]{% if loop.last %}!{% endif %}"
        "{{ m.content[0].text }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    template = ChatTemplate(str(make_checkpoint(tmp_path, template=forgetful)))
    with pytest.raises(UsageError, match=r"turn 2 of key7 does not begin where .* {% generation %}"):
        template.write(talk("a", "b", "c", "d"), MARKS)


def test_a_conversation_that_the_template_refuses_is_a_bad_sample(tmp_path: Path) -> None:
    strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    template = ChatTemplate(str(make_checkpoint(tmp_path, template=strict)))
    raw = json.dumps({"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]})
    with pytest.raises(MediaError, match="key7: the chat template refuses it: TemplateError: no system"):
        template.write(parse(raw, [], "key7"), MARKS)


def test_the_assistant_does_not_begin(qwen: ChatTemplate) -> None:
    raw = json.dumps({"messages": [{"role": "assistant", "content": "x"}]})
    with pytest.raises(MediaError, match="key7: begins with the assistant"):
        qwen.write(parse(raw, [], "key7"), MARKS)


def test_the_models_mark_in_a_text_is_a_bad_sample(qwen: ChatTemplate) -> None:
    with pytest.raises(
        MediaError, match=r"key7: its text has '<\|image_pad\|>' more often than it has a image"
    ):
        qwen.write(talk("<image> and <|image_pad|>", "b", items=(IMAGE,)), MARKS)
    with pytest.raises(MediaError, match="U\\+FDD0"):
        qwen.write(talk("a\ufdd0", "b"), MARKS)


def test_a_template_without_pictures_is_the_wrong_checkpoint(tmp_path: Path) -> None:
    blind = "{% for p in messages[0].content if p.type == 'text' %}{{ p.text }}{% endfor %}"
    template = ChatTemplate(str(make_checkpoint(tmp_path, template=blind)))
    with pytest.raises(UsageError, match="the chat template writes nothing for a image"):
        template.write(talk("a <image>", items=(IMAGE,)), MARKS)


def test_a_piece_that_is_repeated_has_to_be_a_token(qwen: ChatTemplate) -> None:
    with pytest.raises(UsageError, match="'<pad>' is no token of its own"):
        encoded(qwen, talk("<image>", "b", items=(IMAGE,)), [("<pad>", 2)])


def test_the_day_is_not_to_be_had(tmp_path: Path) -> None:
    dated = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}some day{% endif %}"
    template = ChatTemplate(str(make_checkpoint(tmp_path, template=dated)))
    assert template.write(talk("a"), MARKS).text == "some day"


def test_special_tokens_are_added_once(tmp_path: Path) -> None:
    import tokenizers
    from tokenizers import processors

    folder = make_checkpoint(tmp_path, template="{{ messages[0].content[0].text }}", bos_token="<|im_start|>")
    path = str(folder / "tokenizer.json")
    made = tokenizers.Tokenizer.from_file(path)
    made.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|im_end|>",
        special_tokens=[(word, made.token_to_id(word)) for word in ("<|im_start|>", "<|im_end|>")],
    )
    made.save(path)
    template = ChatTemplate(str(folder))
    found = encoded(template, talk("cat"))
    assert text(template, found) == "<|im_start|>cat<|im_end|>"
    assert not found.targets.any()
    again = encoded(template, talk("<|im_start|>cat"))
    assert text(template, again) == "<|im_start|>cat"


def test_where_the_template_is_found(tmp_path: Path) -> None:
    folder = make_checkpoint(
        tmp_path, template="jinja", chat_template=[{"name": "default", "template": "list"}]
    )
    (folder / "chat_template.json").write_text('{"chat_template": "json"}')
    found = []
    for name in ("chat_template.jinja", "chat_template.json", "tokenizer_config.json"):
        template = ChatTemplate(str(folder))
        found.append((template.source, template.fingerprint))
        (folder / name).unlink()
    assert [source for source, _ in found] == ["jinja", "json", "list"]
    assert len({fingerprint for _, fingerprint in found}) == 3
    with pytest.raises(UsageError, match="has no chat template"):
        ChatTemplate(str(folder))
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        ChatTemplate(str(tmp_path / "nowhere"))


def test_a_broken_template_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="its chat template cannot be read"):
        ChatTemplate(str(make_checkpoint(tmp_path, template="{% for %}")))


def test_a_token_that_begins_in_the_prompt_is_none_of_the_assistants(qwen: ChatTemplate) -> None:
    found = encoded(qwen, talk("a", "\nYes."))
    assert text(qwen, found).endswith("<|im_start|>assistant\n\nYes.<|im_end|>\n")
    assert text(qwen, found, targets=True) == "Yes.<|im_end|>\n"  # "\n\n" is one token


words = st.text(st.characters(exclude_categories=("Cs", "Cn")), max_size=20).filter(
    lambda s: "<" not in s and s[:1] not in "\r\n"  # place holders and special tokens; see the test above
)


@given(st.lists(words, min_size=1, max_size=6))
def test_targets_are_the_words_of_the_assistant(qwen: ChatTemplate, values: list[str]) -> None:
    found = encoded(qwen, talk(*values))
    answers = (unicodedata.normalize("NFC", value) for value in values[1::2])
    assert text(qwen, found, targets=True) == "".join(f"{answer}<|im_end|>\n" for answer in answers)


def test_a_role_that_is_no_prompt_is_no_target(tmp_path: Path) -> None:
    """A template that pays no attention to add_generation_prompt writes the role with the answer."""
    plain = "{% for m in messages %}{{ m.role + ': ' + m.content }}<|im_end|>{% endfor %}"
    template = ChatTemplate(str(make_checkpoint(tmp_path, template=plain)))
    found = encoded(template, talk("Who?", "Me.", "Sure?", "Yes."))
    assert text(template, found).endswith("user: Sure?<|im_end|>assistant: Yes.<|im_end|>")
    assert text(template, found, targets=True) == "Me.<|im_end|>Yes.<|im_end|>"

"""Every rank raises the class that was reported to it."""

from __future__ import annotations

import pytest

from libhelix import errors


def _tree(cls: type[errors.HelixError]) -> list[type[errors.HelixError]]:
    own = [cls] if cls.__module__ == "libhelix.errors" else []
    return own + [found for sub in cls.__subclasses__() for found in _tree(sub)]


@pytest.mark.parametrize("cls", _tree(errors.HelixError))
def test_an_error_is_the_same_class_with_the_same_text_on_the_other_side(
    cls: type[errors.HelixError],
) -> None:
    found = errors.from_code(cls.code, "what, where and the cure")
    assert type(found) is cls
    assert str(found) == "what, where and the cure"


def test_codes_tell_all_errors_apart() -> None:
    codes = [cls.code for cls in _tree(errors.HelixError)]
    assert len(set(codes)) == len(codes)


def test_a_code_of_a_newer_version_is_still_an_error_of_ours() -> None:
    assert type(errors.from_code("not-known-yet", "text")) is errors.HelixError


def test_wrong_usage_is_a_value_error_too() -> None:
    assert issubclass(errors.UsageError, ValueError)


def test_every_error_is_found_where_users_look() -> None:
    import libhelix as hx
    from libhelix import errors

    for name, found in vars(errors).items():
        if isinstance(found, type) and issubclass(found, errors.HelixError):
            assert getattr(hx, name) is found

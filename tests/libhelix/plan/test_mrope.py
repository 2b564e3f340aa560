"""M-RoPE positions, counted by hand."""

from __future__ import annotations

from libhelix.plan.mrope import Vision, positions


def test_text_goes_on_by_one_in_all_four() -> None:
    assert positions(3, []).tolist() == [[0, 1, 2]] * 4
    assert positions(0, []).shape == (4, 0)


def test_a_picture_of_two_rows_of_three_between_text() -> None:
    # Two tokens of text, 2 x 3 of the picture, two of text, which goes on max(2, 3) behind the first.
    assert positions(10, [Vision(2, 1, 2, 3)]).tolist() == [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]


def test_times_of_a_video_are_rounded_down_after_multiplying() -> None:
    # 0, 1.5 and 3.0 positions from time to time; text does not mind how long the video is.
    found = positions(7, [Vision(0, 3, 1, 2, interval=1.5)])
    assert found[1].tolist() == [0, 0, 1, 1, 3, 3, 2]
    assert found[2].tolist() == [0, 0, 0, 0, 0, 0, 2]
    assert found[3].tolist() == [0, 1, 0, 1, 0, 1, 2]


def test_products_are_of_single_precision() -> None:
    # 100 * 0.29 is 29 in single precision, and a little less in double.
    found = positions(101, [Vision(0, 101, 1, 1, interval=0.29)])
    assert int(100 * 0.29) == 28
    assert found[1][100] == 29


def test_pictures_follow_one_another() -> None:
    found = positions(8, [Vision(1, 1, 1, 2), Vision(4, 1, 2, 1)])
    assert found[1].tolist() == [0, 1, 1, 3, 4, 4, 6, 7]
    assert found[2].tolist() == [0, 1, 1, 3, 4, 5, 6, 7]
    assert found[3].tolist() == [0, 1, 2, 3, 4, 4, 6, 7]

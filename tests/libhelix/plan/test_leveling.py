"""Moves level ranks, each sample once, and only where that pays."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from libhelix.plan.leveling import Finished, Move, Toll, level

FREE = Toll(0.0, 0.0)


def samples(fields: int) -> st.SearchStrategy[Finished]:
    return st.builds(
        Finished,
        cost=st.integers(0, 30),
        nbytes=st.integers(0, 9),
        rows=st.tuples(*[st.integers(0, 4)] * fields),
    )


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[list[Finished]], list[int]]:
    """The samples of each rank, and room for what they have."""
    fields = draw(st.integers(0, 2))
    ranks = draw(st.lists(st.lists(samples(fields), max_size=6), min_size=1, max_size=5))
    most = [max((sum(s.rows[f] for s in rank) for rank in ranks), default=0) for f in range(fields)]
    return ranks, [m + draw(st.integers(0, 3)) for m in most]


tolls = st.builds(Toll, st.floats(0, 0.5), st.floats(0, 3))


def moved(ranks: Sequence[Sequence[Finished]], moves: Sequence[Move]) -> list[list[Finished]]:
    gone = {(m.source, m.sample) for m in moves}
    after = [[s for i, s in enumerate(rank) if (r, i) not in gone] for r, rank in enumerate(ranks)]
    for m in moves:
        after[m.target].append(ranks[m.source][m.sample])
    return after


def heaviest(ranks: Sequence[Sequence[Finished]]) -> int:
    return max(sum(s.cost for s in rank) for rank in ranks)


def busiest(ranks: Sequence[Sequence[Finished]], moves: Sequence[Move]) -> int:
    sent, received = [0] * len(ranks), [0] * len(ranks)
    for m in moves:
        sent[m.source] += ranks[m.source][m.sample].nbytes
        received[m.target] += ranks[m.source][m.sample].nbytes
    return max(*sent, *received)


@given(steps(), tolls)
def test_a_sample_moves_once_to_another_rank_and_those_without_cost_stay(
    step: tuple[list[list[Finished]], list[int]], toll: Toll
) -> None:
    ranks, room = step
    moves = level(ranks, room, toll)
    assert len({(m.source, m.sample) for m in moves}) == len(moves)
    assert all(m.source != m.target and 0 <= m.target < len(ranks) for m in moves)
    assert all(ranks[m.source][m.sample].cost for m in moves)


@given(steps(), tolls)
def test_moves_save_more_than_the_toll(step: tuple[list[list[Finished]], list[int]], toll: Toll) -> None:
    ranks, room = step
    moves = level(ranks, room, toll)
    if moves:
        before, after = heaviest(ranks), heaviest(moved(ranks, moves))
        saved = before - after - toll.per_byte * busiest(ranks, moves)
        assert saved > 0
        assert saved > toll.least_gain * before


@given(steps(), tolls)
def test_packed_fields_keep_within_their_room_and_no_rank_is_left_empty(
    step: tuple[list[list[Finished]], list[int]], toll: Toll
) -> None:
    ranks, room = step
    after = moved(ranks, level(ranks, room, toll))
    for rank in after:
        assert all(sum(s.rows[f] for s in rank) <= most for f, most in enumerate(room))
    assert all(rank or not was for rank, was in zip(after, ranks))


@given(steps())
def test_where_moves_are_free_none_is_left_that_would_help(
    step: tuple[list[list[Finished]], list[int]],
) -> None:
    ranks, room = step
    after = moved(ranks, level(ranks, room, FREE))
    costs = [sum(s.cost for s in rank) for rank in after]
    # Several may weigh as much as the heaviest: what one of them could still give makes no step faster.
    heavy = [r for r, cost in enumerate(costs) if cost == max(costs)]
    if len(heavy) > 1:
        return
    for i, sample in enumerate(after[heavy[0]]):
        for light, cost in enumerate(costs):
            fits = all(
                sum(s.rows[f] for s in after[light]) + sample.rows[f] <= most for f, most in enumerate(room)
            )
            if light != heavy[0] and fits and sample.cost:
                assert cost + sample.cost >= max(costs), (i, light)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=4), st.integers(1, 5), tolls)
def test_a_level_step_moves_nothing(costs: list[int], ranks: int, toll: Toll) -> None:
    assert level([[Finished(c, 1) for c in costs]] * ranks, [], toll) == ()


@given(steps(), tolls)
def test_the_same_numbers_give_the_same_moves(
    step: tuple[list[list[Finished]], list[int]], toll: Toll
) -> None:
    ranks, room = step
    again = [[Finished(*s) for s in rank] for rank in ranks]
    assert level(ranks, room, toll) == level(again, list(room), Toll(*toll))


def test_one_long_rank_gives_to_all_that_have_time() -> None:
    ranks = [[Finished(10, 1)] * 6, [Finished(1, 1)], [Finished(1, 1)]]
    after = moved(ranks, level(ranks, [], FREE))
    assert [sum(s.cost for s in rank) for rank in after] == [20, 21, 21]


def test_where_there_is_no_room_samples_are_swapped() -> None:
    ranks = [[Finished(20, 1, (4,)), Finished(20, 1, (4,))], [Finished(2, 1, (4,)), Finished(4, 1, (4,))]]
    moves = level(ranks, [8], FREE)
    assert sorted(moves) == [Move(0, 0, 1), Move(1, 0, 0)]
    assert heaviest(moved(ranks, moves)) == 24


def test_of_two_samples_that_help_alike_the_smaller_goes() -> None:
    ranks = [[Finished(5, 100), Finished(5, 1), Finished(5, 50)], [Finished(5, 1)]]
    assert level(ranks, [], Toll(0.0, 0.01)) == (Move(0, 1, 1),)


def test_a_byte_that_costs_too_much_stays_where_it_is() -> None:
    ranks = [[Finished(10, 100), Finished(10, 100)], [Finished(0, 1)]]
    assert len(level(ranks, [], Toll(0.0, 0.09))) == 1
    assert level(ranks, [], Toll(0.0, 0.1)) == ()


def test_a_gain_below_the_least_moves_nothing() -> None:
    ranks = [[Finished(50, 1), Finished(1, 1)], [Finished(48, 1)]]
    assert level(ranks, [], Toll(0.01, 0.0)) == (Move(0, 1, 1),)
    assert level(ranks, [], Toll(0.02, 0.0)) == ()


def test_no_more_moves_than_the_last_percents_are_worth() -> None:
    ranks = [[Finished(c, 1) for c in (40, 40, 3, 3, 3, 3)], [Finished(1, 1)]]
    assert heaviest(moved(ranks, level(ranks, [], FREE))) == 47
    assert level(ranks, [], Toll(0.1, 0.0)) == (Move(0, 0, 1),)  # 52 and 41

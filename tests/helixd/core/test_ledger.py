"""The extents of a ring against a model of bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from helixd.core.ledger import Ledger, round_up

PAGE = 8
RING = 20 * PAGE


class LedgerMachine(RuleBasedStateMachine):
    """Grants, leases, releases and cancels, beside a list that says whose every page is."""

    granted = Bundle("granted")
    leased = Bundle("leased")
    gone = Bundle("gone")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(RING, PAGE)
        self.pages: list[int] = [0] * (RING // PAGE)  # generation, or 0
        self.holders: dict[int, set[int]] = {}
        self.seen: set[int] = set()
        self.ignored = 0

    @rule(target=granted, nbytes=st.integers(1, 8 * PAGE))
    def grant(self, nbytes: int) -> object:
        need, count = -(-nbytes // PAGE), len(self.pages)
        newest = max(self.pages)  # round the ring from its end on
        start = 0 if not newest else 1 + max(at for at in range(count) if self._ends(at, newest))
        runs = [[(start + at + i) % count for i in range(need)] for at in range(count)]
        fits = [run for run in runs if not any(self.pages[at] for at in run)]
        extent = self.ledger.grant(nbytes)
        if not fits:
            assert extent is None
            return multiple()
        assert extent is not None
        assert (extent.offset, extent.nbytes) == (fits[0][0] * PAGE, need * PAGE)
        assert extent.generation > max(self.seen, default=0)
        self.seen.add(extent.generation)
        for at in fits[0]:
            self.pages[at] = extent.generation
        return extent.generation

    def _ends(self, at: int, generation: int) -> bool:
        following = self.pages[(at + 1) % len(self.pages)]
        return self.pages[at] == generation and following != generation

    @rule(target=leased, generation=consumes(granted), holders=st.sets(st.integers(1, 3), min_size=1))
    def lease(self, generation: int, holders: set[int]) -> int:
        self.ledger.lease(generation, holders)
        self.holders[generation] = set(holders)
        return generation

    @rule(target=gone, generation=consumes(granted))
    def cancel(self, generation: int) -> int:
        self.ledger.cancel(generation)
        self._free(generation)
        return generation

    @rule(generation=leased, holder=st.integers(1, 4))
    def release(self, generation: int, holder: int) -> None:
        holders = self.holders.get(generation, set())
        if holder not in holders:  # a stranger, twice, or too late
            assert not self.ledger.release(generation, holder)
            self.ignored += 1
            return
        holders.remove(holder)
        assert self.ledger.release(generation, holder) == (not holders)
        if not holders:
            self._free(generation)

    @rule(generation=st.one_of(granted, gone), holder=st.integers(1, 3))
    def release_what_is_not_leased(self, generation: int, holder: int) -> None:
        assert not self.ledger.release(generation, holder)
        self.ignored += 1

    @rule(holder=st.integers(1, 3))
    def lose_a_holder(self, holder: int) -> None:
        self.ledger.release_all(holder)
        for generation, holders in self.holders.items():
            if holder in holders:
                holders.remove(holder)
                if not holders:
                    self._free(generation)

    def _free(self, generation: int) -> None:
        self.pages = [0 if page == generation else page for page in self.pages]

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.ledger.check()
        assert self.ledger.ignored_releases == self.ignored
        leased = {g for g, holders in self.holders.items() if holders}
        on_lease = sum(page in leased for page in self.pages) * PAGE
        assert self.ledger.used() == (sum(map(bool, self.pages)) * PAGE - on_lease, on_lease)
        assert self.ledger.only_leased() == (any(self.pages) and not self.ledger.used()[0])


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLedgerAgainstAModel = LedgerMachine.TestCase


@settings(deadline=None)
@given(st.lists(st.integers(1, 6 * PAGE), max_size=60), st.integers(1, 3))
def test_batches_delivered_and_released_in_order_always_find_room(sizes: list[int], held: int) -> None:
    """Whatever their sizes: (held + 1) of the largest are enough, and no gap is ever too small."""
    ledger = Ledger((held + 1) * 6 * PAGE, PAGE)
    leased: list[int] = []
    for nbytes in sizes:
        extent = ledger.grant(nbytes)
        assert extent is not None
        ledger.lease(extent.generation, [1])
        leased.append(extent.generation)
        if len(leased) > held:
            assert ledger.release(leased.pop(0), 1)


def test_an_extent_of_two_holders_is_free_after_both() -> None:
    ledger = Ledger(PAGE, PAGE)
    extent = ledger.grant(PAGE)
    assert extent is not None
    ledger.lease(extent.generation, [1, 2])
    assert not ledger.release(extent.generation, 1)
    assert ledger.grant(1) is None
    assert ledger.release(extent.generation, 2)
    assert ledger.grant(1) is not None


@pytest.mark.parametrize("holder", [1, 2])
def test_late_double_and_foreign_releases_are_ignored_and_counted(holder: int) -> None:
    ledger = Ledger(4 * PAGE, PAGE)
    extent = ledger.grant(PAGE)
    assert extent is not None
    assert not ledger.release(extent.generation, 1)  # not leased yet
    ledger.lease(extent.generation, [1])
    assert not ledger.release(extent.generation, 2)  # not a holder
    assert ledger.release(extent.generation, 1)
    again = ledger.grant(PAGE)  # the same bytes, another generation
    assert again is not None
    ledger.lease(again.generation, [1])
    assert not ledger.release(extent.generation, holder)
    assert ledger.used() == (0, PAGE)
    assert ledger.ignored_releases == 3


def test_what_a_daemon_must_never_do_is_an_assertion() -> None:
    ledger = Ledger(4 * PAGE, PAGE)
    extent = ledger.grant(PAGE)
    assert extent is not None
    with pytest.raises(AssertionError, match="leased to nobody"):
        ledger.lease(extent.generation, [])
    extent.holders = None
    ledger.lease(extent.generation, [1])
    with pytest.raises(AssertionError, match="leased twice"):
        ledger.lease(extent.generation, [2])
    with pytest.raises(AssertionError, match="leased, not granted"):
        ledger.cancel(extent.generation)


def test_a_check_finds_extents_that_overlap_or_leave_the_ring() -> None:
    ledger = Ledger(4 * PAGE, PAGE)
    one, two = ledger.grant(PAGE), ledger.grant(PAGE)
    assert one is not None
    assert two is not None
    ledger.check()
    two.offset = 4 * PAGE
    with pytest.raises(AssertionError, match=r"overlap|outside"):
        ledger.check()
    two.offset, two.nbytes = PAGE, 4 * PAGE
    with pytest.raises(AssertionError, match="overlap"):
        ledger.check()


def test_rounding_up() -> None:
    assert [round_up(n, 8) for n in (0, 1, 8, 9)] == [0, 8, 8, 16]

"""Which core makes which chain of samples.

A chain that moves is gone through from its beginning once more, so when cores come and go as few move as can:
those of the cores that went, and to cores that came as many as make all cores have alike many.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

Chain = tuple[int, int]
"""Number of the loader, number of the chain."""


@dataclass(eq=False)
class Homes:
    """The cores of a job, and the chains of its loaders that live there."""

    _of: dict[int, list[Chain]] = field(default_factory=dict)
    """The chains of each core."""
    _core: dict[Chain, int] = field(default_factory=dict)

    def settle(self, cores: Collection[int]) -> None:
        """These cores are there from now on."""
        if not cores:
            return  # for a moment: who comes back finds its chains
        gone = sorted(self._of.keys() - set(cores))
        homeless = [chain for core in gone for chain in self._of.pop(core)]
        for core in sorted(cores):
            self._of.setdefault(core, [])
        for chain in homeless:
            self._house(chain)
        while len(self._of[full := self._fullest()]) > len(self._of[self._emptiest()]) + 1:
            self._house(self._of[full].pop())

    def core_of(self, chain: Chain) -> int | None:
        """The core of a chain; None where there are no cores."""
        if chain not in self._core and self._of:
            self._house(chain)
        return self._core.get(chain)

    def forget(self, loader: int) -> None:
        """A loader is gone. The chains of others stay where they are."""
        for core, its in self._of.items():
            self._of[core] = [chain for chain in its if chain[0] != loader]
        self._core = {chain: core for chain, core in self._core.items() if chain[0] != loader}

    def _house(self, chain: Chain) -> None:
        core = self._emptiest()
        self._of[core].append(chain)
        self._core[chain] = core

    def _emptiest(self) -> int:
        return min(self._of, key=lambda core: (len(self._of[core]), core))

    def _fullest(self) -> int:
        return min(self._of, key=lambda core: (-len(self._of[core]), core))

"""What the parent and the ranks of the demo tell each other: JSON lines, one message a line."""

from __future__ import annotations

import msgspec

from bench.demo.recipe import LabelledClip


class Window(msgspec.Struct, frozen=True):
    """How long an accelerator would compute a batch: fixed_s + per_token_s * tokens."""

    fixed_s: float
    per_token_s: float

    def seconds(self, tokens: int) -> float:
        """The window of a batch."""
        return self.fixed_s + self.per_token_s * tokens


class DataLoaderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A DataLoader of each rank: its workers, and batches ahead in each of them."""

    workers: int
    prefetch: int


class TrainSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All that a rank is told. Rank and size come in the environment, as under torchrun.

    data_loader: train from a DataLoader; None: from DataHelix.
    """

    index: str
    recipe: LabelledClip
    window: Window
    classes: int
    steps: int
    batch: int
    seed: int
    learning_rate: float = 0.01
    data_loader: DataLoaderSettings | None = None


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The rank has joined the others and is about to ask for its first batch."""

    rank: int
    start_s: float


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """One step of one rank. `*_at_s` are on CLOCK_MONOTONIC, which all ranks of a machine share.

    wait: time in next(). compute: CPU work of forward and backward, inside the window. window: what the
    accelerator takes. The rest of the step is the all-reduce, where the ranks wait for each other. cpu: CPU
    time of the rank's own process over the step. ids: rows of the index. masked: samples that could not be
    decoded.
    """

    rank: int
    step: int
    epoch: int
    asked_at_s: float
    done_at_s: float
    wait_s: float
    compute_s: float
    window_s: float
    cpu_s: float
    tokens: int
    nbytes: int
    loss: float
    ids: tuple[int, ...]
    masked: int


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The rank is done and has closed its loader."""

    rank: int


Message = Started | StepRecord | Finished

"""One rank of the demo's training job: `python -m bench.demo.train SETTINGS.json`.

Reports on stdout, a JSON line for each message of `records`. Everything else that is printed goes to stderr.
The forward and backward passes are real and small; the rest of the window is slept, because an accelerator
would leave the CPU alone meanwhile. Annotations are not postponed here: DDP checks those of its hook.
"""

import sys
import time
from pathlib import Path
from typing import BinaryIO, NoReturn

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # public, not in its __all__
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from bench.child import end_with_parent, leave_group, take_stdout
from bench.demo.records import Finished, Message, Started, StepRecord, TrainSettings
from bench.demo.sources import Fed, Source, source_of

STRIDE = 4
"""The model sees every fourth pixel of a row and a column."""


class ClipNet(nn.Module):
    """Two convolutions over every frame, the mean over the frames of a clip, and a linear head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.frames = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 24, 3, stride=2), nn.ReLU()
        )
        self.head = nn.Linear(24, classes)

    def forward(self, video: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Logits [clips, classes] of uint8 video [frames, height, width, 3], clips end to end."""
        green = video[:, ::STRIDE, ::STRIDE, 1].unsqueeze(1)
        seen = self.frames(green.float() / 128.0 - 1.0).mean(dim=(2, 3))
        lengths = cu_seqlens.diff().long()
        clip = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        sums = seen.new_zeros(len(lengths), seen.shape[1]).index_add_(0, clip, seen)
        logits: Tensor = self.head(sums / lengths.clamp(min=1).unsqueeze(1))
        return logits


class Trainer:
    """The model of one rank, its optimizer, and the accelerator that is not there."""

    def __init__(self, settings: TrainSettings) -> None:
        torch.manual_seed(settings.seed)
        self._window = settings.window
        self._model = DistributedDataParallel(ClipNet(settings.classes))
        self._model.register_comm_hook(None, self._all_reduce)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=settings.learning_rate)
        self._loss = nn.CrossEntropyLoss()
        self._began_s = self._compute_s = self._window_s = 0.0

    def step(self, batch: Fed) -> tuple[float, float, float]:
        """Train on a batch. Returns its loss, the seconds computed before the all-reduce, and the window."""
        self._began_s = time.monotonic()
        self._window_s = self._window.seconds(batch.tokens)
        self._compute_s = 0.0
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss(self._model(batch.video, batch.cu_seqlens), batch.label)
        loss.backward()
        self._optimizer.step()
        return float(loss.detach()), self._compute_s, self._window_s

    def _all_reduce(self, _: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """DDP calls this when gradients are ready: sleep the rest of the window, then let the ranks meet."""
        self._compute_s = time.monotonic() - self._began_s
        time.sleep(max(0.0, self._window_s - self._compute_s))
        world = dist.group.WORLD
        assert world is not None, "main() has made the process group"
        return allreduce_hook(world, bucket)


def train(settings: TrainSettings, rank: int, report: "Reporter") -> None:
    """Run all steps and report each."""
    trainer = Trainer(settings)
    report(Started(rank=rank, start_s=time.monotonic()))
    source: Source | None = None
    try:
        for step in range(settings.steps):
            asked_s, asked_cpu_s = time.monotonic(), time.process_time()
            if source is None:  # starting what decodes is a part of waiting for the first batch
                source = source_of(settings, rank, dist.get_world_size())
            batch = source.next()
            wait_s = time.monotonic() - asked_s
            loss, compute_s, window_s = trainer.step(batch)
            record = StepRecord(
                rank=rank,
                step=step,
                epoch=batch.epoch,
                asked_at_s=asked_s,
                done_at_s=time.monotonic(),
                wait_s=wait_s,
                compute_s=compute_s,
                window_s=window_s,
                cpu_s=time.process_time() - asked_cpu_s,
                tokens=batch.tokens,
                nbytes=batch.video.nbytes + batch.label.nbytes,
                loss=loss,
                ids=batch.ids,
                masked=batch.masked,
            )
            del batch  # before the next ask: its memory is free again
            report(record)
    finally:
        if source is not None:
            source.close()


class Reporter:
    """Writes messages to the parent."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def __call__(self, message: Message) -> None:
        self._out.write(msgspec.json.encode(message) + b"\n")


def main(arguments: list[str]) -> NoReturn:
    """Exit code 0 when all steps are done."""
    report = Reporter(take_stdout())
    end_with_parent()
    torch.set_num_threads(1)
    settings = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=TrainSettings)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    train(settings, rank, report)
    report(Finished(rank=rank))
    leave_group()


if __name__ == "__main__":
    main(sys.argv[1:])

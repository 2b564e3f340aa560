"""transformers.Trainer: nothing is sharded again, and resuming gives exactly the rest."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from libhelix.errors import UsageError
from tests.system.processes import ROOT

pytest.importorskip("transformers", reason="pip install transformers accelerate")
pytest.importorskip("accelerate", reason="pip install accelerate")
pytestmark = pytest.mark.filterwarnings("default")

from libhelix.adapters.huggingface import LoaderTrainer  # noqa: E402 - it imports transformers
from tests.adapters import hf  # noqa: E402 - it imports transformers


def _ranks(ranks: int, job: str = "", **what: Any) -> list[dict[str, Any]]:
    """What each rank of a training of their own was trained on."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HELIX_JOB": job}
    env |= {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "tests.adapters.hf", json.dumps(what)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [
        subprocess.Popen(command, env={**env, "RANK": str(r), "LOCAL_RANK": str(r)}, cwd="/", **pipes)
        for r in range(ranks)
    ]
    try:
        ended = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, stderr) in zip(started, ended):
        assert process.returncode == 0, stderr.decode()
    return [json.loads(stdout.splitlines()[-1]) for stdout, _ in ended]


def _numbers(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


def test_a_trainer_takes_every_sample_of_every_epoch_and_evaluates_another_loader(
    numbers: Path, tmp_path: Path
) -> None:
    model = hf.Noting()
    trainer = hf.trainer(numbers, tmp_path, model, num_train_epochs=2, save_strategy="no")
    trainer.train()
    assert trainer.state.global_step == 24
    for epoch in (model.trained[:12], model.trained[12:]):
        assert sorted(_numbers(epoch)) == list(range(24))
    assert model.trained[:12] != model.trained[12:]
    trainer.evaluate()
    assert model.evaluated == list(range(24))


def test_a_loss_of_ones_own_sees_what_a_batch_says_besides_its_fields(numbers: Path, tmp_path: Path) -> None:
    seen: list[tuple[list[int], bool, int]] = []

    class Weighing(LoaderTrainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append((list(inputs.ids), bool(inputs.valid.all()), inputs.global_samples))
            return super().compute_loss(model, inputs, *args, **kwargs)

    model = hf.Noting()
    trainer = hf.trainer(numbers, tmp_path, model, kind=Weighing, num_train_epochs=1, save_strategy="no")
    trainer.train()
    assert [ids for ids, _, _ in seen] == model.trained
    assert {(valid, samples) for _, valid, samples in seen} == {(True, 2)}


@pytest.mark.parametrize("stop", [3, 6, 9], ids=["inside", "at its end", "in the next"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_resuming_trains_on_exactly_the_rest(
    numbers: Path, tmp_path: Path, stop: int, accumulate: int
) -> None:
    how: dict[str, Any] = {
        "samples": 4 // accumulate,
        "gradient_accumulation_steps": accumulate,
        "loading": {"micro_batches": accumulate},
        "num_train_epochs": 2,
    }
    whole = hf.Noting()
    hf.trainer(numbers, tmp_path / "whole", whole, **how).train()
    assert len(whole.trained) == 12 * accumulate
    saved = tmp_path / "whole" / f"checkpoint-{stop}"
    rest = hf.Noting()
    trainer = hf.trainer(numbers, tmp_path / "rest", rest, **how)
    trainer.train(resume_from_checkpoint=str(saved))
    assert trainer.state.global_step == 12
    assert rest.trained == whole.trained[stop * accumulate :]


def test_one_iteration_of_several_epochs_is_resumed_in_the_second(numbers: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"num_train_epochs": 1, "loading": {"epochs": 2}}
    whole, rest = hf.Noting(), hf.Noting()
    hf.trainer(numbers, tmp_path / "whole", whole, **how).train()
    assert len(whole.trained) == 24
    trainer = hf.trainer(numbers, tmp_path / "rest", rest, **how)
    trainer.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-15"))
    assert rest.trained == whole.trained[15:]


def test_two_ranks_are_resumed_as_one(numbers: Path, tmp_path: Path, job: str) -> None:
    what: dict[str, Any] = {"index": str(numbers), "output": str(tmp_path), "num_train_epochs": 2}
    what["loading"] = {"backend": "daemon"}
    two = _ranks(2, job, samples=2, resume=False, stop=9, **what)
    assert [rank["step"] for rank in two] == [9, 9]
    assert not set(_numbers(two[0]["trained"][:6])) & set(_numbers(two[1]["trained"][:6]))
    (one,) = _ranks(1, job, samples=4, resume=True, stop=None, **what)
    assert one["step"] == 12
    second = [two[0]["trained"][6:], two[1]["trained"][6:], one["trained"]]
    assert sorted(n for batches in second for n in _numbers(batches)) == list(range(24))


def test_the_trainer_must_not_skip_once_more(numbers: Path, tmp_path: Path) -> None:
    hf.trainer(numbers, tmp_path, hf.Noting(), max_steps=3).train()
    again = hf.trainer(numbers, tmp_path, hf.Noting(), ignore_data_skip=False)
    with pytest.raises(UsageError, match="ignore_data_skip=True"):
        again.train(resume_from_checkpoint=True)


def test_a_checkpoint_that_counts_other_steps_is_refused(numbers: Path, tmp_path: Path) -> None:
    hf.trainer(numbers, tmp_path, hf.Noting(), max_steps=3).train()
    again = hf.trainer(numbers, tmp_path, hf.Noting(), loading={"epochs": 2})
    with pytest.raises(UsageError, match="counts 12 batches to an iteration, this run has 24"):
        again.train(resume_from_checkpoint=True)
    (tmp_path / "checkpoint-3" / "loader.json").unlink()
    with pytest.raises(UsageError, match=r"has no loader\.json"):
        again.train(resume_from_checkpoint=True)


def test_epochs_of_the_loader_and_of_the_trainer_are_not_multiplied(numbers: Path, tmp_path: Path) -> None:
    trainer = hf.trainer(numbers, tmp_path, hf.Noting(), num_train_epochs=3, loading={"epochs": 2})
    with pytest.raises(UsageError, match="epochs=2 and the Trainer num_train_epochs=3"):
        trainer.train()


def test_ranks_that_would_train_models_of_their_own_are_refused(numbers: Path, tmp_path: Path) -> None:
    """torchrun on CPUs, and no use_cpu=True: each process takes itself for the only one."""
    trainer = hf.trainer(numbers, tmp_path, hf.Noting(), loading={"dp_rank": 1, "dp_size": 2})
    with pytest.raises(UsageError, match=r"2 ranks, and the Trainer 1 process .*use_cpu=True"):
        trainer.train()


def test_predictions_are_of_a_loader(numbers: Path, tmp_path: Path) -> None:
    trainer = hf.trainer(numbers, tmp_path, hf.Noting())
    trainer.predict(trainer.eval_dataset)
    assert sorted(trainer.model.evaluated) == list(range(24))


def test_accumulation_that_leaves_a_rest_is_refused(numbers: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="12 batches, which do not divide into steps of 5; make it with micro"
    ):
        hf.trainer(numbers, tmp_path, hf.Noting(), gradient_accumulation_steps=5).train()

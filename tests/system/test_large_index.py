"""An index of twenty million samples costs no more memory than one of twenty thousand, and no more time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from libhelix.index import schema
from tests.system.processes import ROOT

ROWS = 20_000_000
MAX_GROWTH_BYTES = 500 << 20
FIRST_BATCH_LIMIT_S = 5.0
FREE_BYTES = 12 << 30

TRAIN = """
import json, os, sys, time
import libhelix as hx
from tests.system import processes
from tests.system.recipes import Tokens

def anonymous(pids):
    lines = [l for p in pids for l in open(f"/proc/{p}/status") if l.startswith("RssAnon:")]
    return sum(int(l.split()[1]) * 1024 for l in lines)

index, job, kind = sys.argv[1:]
batching = hx.TokenBudget(64, max_bytes=1 << 20) if kind == "tokens" else hx.FixedBatch(16)
with hx.Loader(index, recipe=Tokens(), batching=batching, job=job) as loader:
    began = time.monotonic()
    batches = iter(loader)
    next(batches)
    first_s = time.monotonic() - began
    for _ in range(20):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    anon = anonymous([os.getpid(), *processes.of_job(job)])
    ids = next(batches).ids
with hx.Loader(index, recipe=Tokens(), batching=batching, job=job) as loader:
    began = time.monotonic()
    loader.load_state_dict(state)
    assert next(iter(loader)).ids == ids
    resumed_s = time.monotonic() - began
print(json.dumps({"first_s": first_s, "resumed_s": resumed_s, "anon": anon, "state": len(json.dumps(state))}))
"""


def _write(path: Path, rows: int) -> Path:
    """An index of images that are not there; the recipe of this test opens none."""
    zeros = pa.py_buffer(np.zeros(8 * (rows + 1), dtype=np.uint8))

    def text(value: bytes) -> Any:
        ends = np.arange(rows + 1, dtype=np.int64) * len(value)
        content = pa.py_buffer(np.frombuffer(value * rows, dtype=np.uint8))
        return pa.Array.from_buffers(pa.large_string(), rows, [None, pa.py_buffer(ends), content])

    def column(name: str, kind: Any) -> Any:
        if pa.types.is_dictionary(kind):
            codes = pa.Array.from_buffers(pa.int32(), rows, [None, zeros])
            return pa.DictionaryArray.from_arrays(codes, pa.array([""], pa.large_string()))
        if pa.types.is_large_string(kind):
            return text({"key": b"a/b.png", "kind": b"image", "codec": b"png"}.get(name, b""))
        if pa.types.is_large_list(kind):
            empty = pa.array([], pa.int64())
            return pa.Array.from_buffers(kind, rows, [None, zeros], children=[empty])
        return pa.Array.from_buffers(kind, rows, [None, zeros])

    metadata = {
        schema.META_FORMAT: str(schema.FORMAT),
        schema.META_FINGERPRINT: f"{rows:032x}",
        schema.META_ROOT: "/nowhere",
        schema.META_REFUSED: "0",
    }
    children = [column(n, k) for n, k in schema.ITEM_COLUMNS]
    items = pa.StructArray.from_arrays(children, fields=[pa.field(n, k) for n, k in schema.ITEM_COLUMNS])
    ends = pa.array(np.arange(rows + 1, dtype=np.int64))
    lists = pa.LargeListArray.from_arrays(ends, items)
    fields = pa.schema([pa.field(n, k) for n, k in schema.COLUMNS], metadata=metadata)
    batch = pa.record_batch([column("key", pa.large_string()), lists], schema=fields)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, fields) as writer:
        writer.write_batch(batch)
    return path


@pytest.mark.parametrize("kind", ["fixed", "tokens"])
def test_twenty_million_samples_cost_no_memory_and_no_time(tmp_path: Path, job: str, kind: str) -> None:
    if shutil.disk_usage(tmp_path).free < FREE_BYTES:
        pytest.skip(f"needs {FREE_BYTES >> 30} GiB of disk")
    (tmp_path / "train.py").write_text(TRAIN)
    found = []
    for rows in (ROWS // 1000, ROWS):
        index = _write(tmp_path / f"{rows}.arrow", rows)
        done = subprocess.run(
            [sys.executable, str(tmp_path / "train.py"), str(index), f"{job}-{rows}", kind],
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=180,
        )
        index.unlink()
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    small, large = found
    assert large["anon"] - small["anon"] < MAX_GROWTH_BYTES, found
    assert large["first_s"] < FIRST_BATCH_LIMIT_S, found
    assert large["resumed_s"] < FIRST_BATCH_LIMIT_S, found
    assert large["state"] < 4096, found
    print(found)

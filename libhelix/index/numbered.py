"""An index of numbers alone: samples that have no files, and are made of their number."""

from __future__ import annotations

import hashlib
import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from libhelix.index import schema, writing
from libhelix.index.cache import cache_folder


def numbered(samples: int, name: str, noun: str) -> str:
    """The path of an index of so many samples in the user's cache, made if it is not there.

    Their keys are the noun and the number. What is known of single samples, such as that one is bad, is kept
    for each `name` apart.
    """
    path = os.path.join(cache_folder(), f"{noun}-{samples}-{name}.arrow")
    if not os.path.exists(path):  # two at once write the same, and each whole
        writing.write(_batch(samples, noun), path, "set HELIX_CACHE to a writable folder")
    return path


def _batch(samples: int, noun: str) -> pa.RecordBatch:
    print_ = hashlib.blake2b(f"{samples} {noun}".encode(), digest_size=16).hexdigest()
    metadata = {
        schema.META_FORMAT: str(schema.FORMAT),
        schema.META_PROBING: schema.PROBING,
        schema.META_FINGERPRINT: print_,
        schema.META_ROOT: os.sep,
        schema.META_REFUSED: "0",
    }
    text = pa.large_string()
    numbers = pa.array(np.arange(samples)).cast(text)
    keys = pc.binary_join_element_wise(pa.scalar(noun, text), numbers, pa.scalar(" ", text))
    return schema.batch_without_items(keys, metadata)

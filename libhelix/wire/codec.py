"""Bytes <-> messages. One decoder per direction, built once; anything else is a ProtocolError."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from libhelix.errors import ProtocolError
from libhelix.wire import messages as m

MAX_MESSAGE_BYTES = 64 * 1024
MAX_TEXT_BYTES = 2048
"""Error texts on the wire; a traceback of any length must not exceed a message."""

_encoder = msgspec.msgpack.Encoder()
T = TypeVar("T")


def encode(message: m.Message) -> bytes:
    """The message as bytes. Raises ProtocolError when it is over 64 KiB: its sender must cut it."""
    try:
        data = _encoder.encode(message)
    except (OverflowError, UnicodeEncodeError) as e:
        raise ProtocolError(f"a {type(message).__name__} cannot be sent: {e}") from e
    if len(data) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a {type(message).__name__} of {len(data)} bytes; at most {MAX_MESSAGE_BYTES}")
    return data


def short(text: str, most: int = MAX_TEXT_BYTES) -> str:
    """The text, cut to the bytes that a message may carry, its beginning and its end kept."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= most:
        return raw.decode("utf-8", "replace")
    head, tail = raw[: most // 3], raw[-most // 2 :]
    return f"{head.decode('utf-8', 'ignore')} [...] {tail.decode('utf-8', 'ignore')}"


class Decoder(Generic[T]):
    """Decodes the messages of one direction."""

    def __init__(self, kind: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)

    def __call__(self, data: bytes) -> T:
        """The message. Raises ProtocolError for anything that is not one of this direction."""
        if len(data) > MAX_MESSAGE_BYTES:
            raise ProtocolError(f"a message of {len(data)} bytes; at most {MAX_MESSAGE_BYTES}")
        try:
            message: T = self._decoder.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as e:
            raise ProtocolError(f"not a message of this link: {e}") from e
        return message


hello: Decoder[m.Hello] = Decoder(m.Hello)
from_trainer: Decoder[m.FromTrainer] = Decoder(m.FromTrainer)
to_trainer: Decoder[m.ToTrainer] = Decoder(m.ToTrainer)
from_host: Decoder[m.FromHost] = Decoder(m.FromHost)
to_host: Decoder[m.ToHost] = Decoder(m.ToHost)
from_worker: Decoder[m.FromWorker] = Decoder(m.FromWorker)
to_worker: Decoder[m.ToWorker] = Decoder(m.ToWorker)
from_ctl: Decoder[m.FromCtl] = Decoder(m.FromCtl)
to_ctl: Decoder[m.ToCtl] = Decoder(m.ToCtl)

"""What a copy answers, as it goes over the wire: once, how many rows it wrote, or why there is no file.

Does not: write, know when a copy is over.
"""

from __future__ import annotations

import msgspec

from clusterd.operators.export_copy_to import ExportCopyTo
from clusterd.runtime.effects import Tell
from controller_proto.errors import Refusal
from controller_proto.response import Copied, CopyError
from shm_arrangements.frontier import Frontier

__all__ = ["encode_copy_error", "tell_copied"]

_encode = msgspec.msgpack.Encoder().encode


def tell_copied(number: int, copy: ExportCopyTo) -> Tell:
    """The answer of a copy, of dataflow `number`, whose round is over."""
    taken = copy.take()
    result = encode_copy_error(taken) if isinstance(taken, Refusal) else _encode(Copied(taken))
    return Tell(number, result, Frontier.minimum(), True, Frontier.empty())


def encode_copy_error(why: Refusal) -> bytes:
    """The answer of a copy that came to nothing."""
    return _encode(CopyError(why.code, why.message, why.hint))

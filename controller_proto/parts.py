"""Parts: an answer that came in several messages, put together, so that whoever asked sees one answer.

A part is kept until the PeekResponse of its peek, which is the end in any case: with rows it says how many
parts belong to it, with anything else the parts are void. So what is kept is bounded by what was asked for.

Does not: judge rows, know which peeks are open.
"""

from __future__ import annotations

from itertools import chain

import msgspec

from controller_proto.response import PeekError, PeekPart, PeekResponse, PeekRows

__all__ = ["Parts"]


class Parts:
    """Of one connection.

    >>> parts = Parts()
    >>> parts.take(PeekPart("a", ((1, 2),), (1, 1)))
    >>> parts.take(PeekResponse("a", PeekRows(((3,),), (1,), parts=1))).result.columns
    ((1, 2, 3),)
    """

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: dict[str, list[PeekPart]] = {}

    def __len__(self) -> int:
        """Answers of which there is a part and not the end."""
        return len(self._parts)

    def take(self, said: PeekPart | PeekResponse) -> PeekResponse | None:
        """The whole answer, if this is the end of it. One that lacks parts is the error `bad-message`."""
        if isinstance(said, PeekPart):
            self._parts.setdefault(said.uuid, []).append(said)
            return None
        came: list[PeekPart] = self._parts.pop(said.uuid, [])
        last = said.result
        if not isinstance(last, PeekRows) or not (came or last.parts):
            return said
        pieces: list[PeekPart | PeekRows] = [*came, last]
        widths = {len(piece.columns) for piece in pieces}
        if len(came) != last.parts or len(widths) > 1:
            problem = PeekError("bad-message", f"the answer has {last.parts} parts, {len(came)} of them came")
            return msgspec.structs.replace(said, result=problem)
        columns = zip(*(piece.columns for piece in pieces), strict=True)
        whole = PeekRows(
            tuple(tuple(chain.from_iterable(cut)) for cut in columns),
            tuple(chain.from_iterable(piece.counts for piece in pieces)),
            last.parts,
        )
        return msgspec.structs.replace(said, result=whole)

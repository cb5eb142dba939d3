"""What the pieces of a trace promise each other.

The reader interface is a strict part of the writer's: who holds a `TraceReader` can read and nothing else. An
allocation is written once and then sealed; whether its bytes are private or shared is the allocator's affair.

Does not: implement anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shm_arrangements.frontier import Frontier
from shm_arrangements.schema import ArrangementSchema

if TYPE_CHECKING:
    from shm_arrangements.batch import Batch


class Allocation(Protocol):
    """Bytes to be written once."""

    @property
    def buffer(self) -> NDArray[np.uint8]:
        """Writable, at least as long as asked, aligned to 64 bytes; its contents are undefined.

        Raises: InvariantViolation while not all of it is reserved.
        """

    @property
    def reserved(self) -> int:
        """How many bytes from the first on have memory behind them: all, unless allocated `deferred`."""

    def reserve(self, upto_bytes: int) -> None:
        """Put memory behind at least the first `upto_bytes` bytes, or all if that is more than there are.

        Raises: ShmExhausted; the allocation is abandoned then.
        """

    @property
    def locator(self) -> Any:
        """How another process finds these bytes; None if none can."""

    def seal(self) -> NDArray[np.uint8]:
        """Forbid writing from here on, and give the bytes read-only. Called once."""

    def abandon(self) -> None:
        """Give the bytes back unsealed. Idempotent."""


class Allocator(Protocol):
    """Where a batch's bytes come from."""

    @property
    def checksums(self) -> bool:
        """Whether the bytes will cross to other processes, and so carry a checksum."""

    def allocate(self, nbytes: int, *, deferred: bool = False) -> Allocation:
        """Bytes for one batch; `deferred`: large ones are not reserved yet, who asked pays for it in pieces.

        Raises: ShmExhausted with `asked_bytes` and `free_bytes`, RegistryFull.
        """


class TraceReader(Protocol):
    """A chain of batches that can be read at times `since <= t < upper`.

    The batches abut, oldest first: each one's lower is the upper of the one before. A batch obtained stays
    valid as long as it is referred to, whatever the trace does meanwhile.
    """

    @property
    def schema(self) -> ArrangementSchema: ...

    @property
    def since(self) -> Frontier:
        """The earliest time that can be read. Never regresses."""

    @property
    def upper(self) -> Frontier:
        """The first time that cannot be read yet. Never regresses; empty is closed."""

    def batches(self) -> Sequence[Batch]:
        """The chain as it stands."""

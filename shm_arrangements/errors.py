"""What can go wrong with arrangements, by who has to act.

`InvariantViolation` is our own bug and ends the process. `NotReadable`, `NotSealed` and `PublicationClosed`
are the expected answers of a read that came too early or too late. `ShmExhausted` is the machine's. The
rest name data or bytes that cannot be used. Facts are attributes, so that a caller never parses a message.

Does not: know about wire codes; the layer above maps types to them.
"""

from __future__ import annotations


class ArrangementError(Exception):
    """Base of every error of this package. `facts` are also attributes of the instance."""

    def __init__(self, message: str, *, hint: str = "", **facts: object) -> None:
        self.message = message
        self.hint = hint
        self.facts = facts
        super().__init__(message)

    def __getattr__(self, name: str) -> object:
        # Reached only when normal lookup failed: `facts` may not exist yet while unpickling.
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(name)

    def __str__(self) -> str:
        told = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        text = f"{self.message} ({told})" if told else self.message
        return f"{text}; {self.hint}" if self.hint else text


class InvariantViolation(ArrangementError):
    """Something that cannot happen did: our bug, never the caller's data."""


class FormatMismatch(ArrangementError):
    """Bytes of another format, another version, or damaged ones."""


class NotReadable(ArrangementError):
    """The time asked for is before `since`: its updates may have been rounded up."""


class NotSealed(ArrangementError):
    """The time asked for is at or beyond `upper`: its updates may not all be there."""


class WaitTimeout(ArrangementError, TimeoutError):
    """What was waited for did not come in the time given; facts: `time`, `ids`, `uppers`, `timeout_s`."""


class PublicationClosed(ArrangementError):
    """The arrangement was dropped, or was never published under this name."""


class AlreadyPublished(ArrangementError, FileExistsError):
    """An index is published under that id and incarnation; facts: `id`, `incarnation`."""


class AmbiguousName(ArrangementError):
    """Several publications, or columns, have the name that was given; `ids` or `positions` lists them."""


class NotOrdered(ArrangementError):
    """A range or prefix was asked for of an arrangement whose keys are in no order."""


class NoSuchInstance(ArrangementError):
    """No instance lives under that token; or none was named, and not exactly one lives."""


class WriterGone(ArrangementError):
    """The instance that wrote the arrangement has ended; what was mapped before stays readable."""


class ShmExhausted(ArrangementError):
    """Shared memory has no room for what was asked; facts: `asked_bytes`, `free_bytes`."""


class RegistryFull(ArrangementError):
    """A fixed table (descriptors, entries) has no free place."""


class MultiplicityOverflow(ArrangementError, OverflowError):
    """A sum of diffs left the signed 64-bit range."""


class DataError(ArrangementError):
    """The collection holds an error at the time read: the message is one of them, `errors` says how many."""


class NotInstalled(ArrangementError, ImportError):
    """A library that only some results need is not there; facts: `library`."""

"""Opening: what is open once it is awaited, and closed again by `async with`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar

__all__ = ["Opening"]


class _Closed(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=_Closed)


class Opening(Generic[T]):
    """Nothing happens before `await opening`, which gives what is open, or `async with opening as it`."""

    def __init__(self, open_: Callable[[], Awaitable[T]]) -> None:
        self._open = open_
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self._open().__await__()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"not open yet, so without {name!r}: `await` it first, or use `async with`")

    async def __aenter__(self) -> T:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.close()

"""Follow: the files of a path into a shard, and what is written to them afterwards, as the kernel tells it.

A path is a file, or a folder: of that, the files whose names end as files of rows do, in the order of their
names. The watch is set before the first look, so nothing that comes meanwhile is missed. Texts are read as
they grow, up to the last whole row; the others when their writer has closed them or they are moved here. A
file that is gone or was replaced is the loader's to judge (load.py): with a file column its rows go too.

Does not: poll, look into subfolders, follow a file to another folder.
"""

from __future__ import annotations

import errno
import select
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

from clusterd.storage import inotify
from clusterd.storage.inotify import Inotify, Notice
from clusterd.storage.load import Loaded, Loader
from clusterd.storage.tables import can_grow, is_known
from controller_proto.errors import Refusal

__all__ = ["Follower"]

_GROWS = inotify.MODIFY | inotify.CREATE
_COMPLETE = inotify.CLOSE_WRITE | inotify.MOVED_TO
_GONE = inotify.DELETE | inotify.MOVED_FROM


class Follower:
    """Takes the files of `path`, absolute, with `loader`; `report` is told of each."""

    def __init__(self, path: Path, loader: Loader, report: Callable[[Path, Loaded], None]) -> None:
        self._path = path
        self._folder = path if path.is_dir() else path.parent
        self._loader = loader
        self._report = report
        self._inotify = Inotify()
        self._inotify.watch(self._folder, _GROWS | _COMPLETE | _GONE)

    def fileno(self) -> int:
        return self._inotify.fileno()

    def take_all(self) -> int:
        """Take what there is of all files; returns how many there are. Raises as `Loader.take`."""
        if self._path != self._folder:
            self._take([self._path])
            return 1
        files = sorted(file for file in self._folder.iterdir() if is_known(file) and file.is_file())
        known = [Path(name) for name in self._loader.known]
        self._take([*files, *(file for file in known if file.parent == self._folder and not file.exists())])
        return len(files)

    def follow(self) -> None:
        """Take what comes, for ever. Raises as `Loader.take`."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        while True:
            poll.poll()
            self.drain()

    def drain(self) -> None:
        """Take what came since the last call, if anything did; never waits."""
        notices = self._inotify.notices()
        if any(notice.mask & inotify.OVERFLOW for notice in notices):
            self.take_all()
            return
        if any(notice.mask & inotify.IGNORED for notice in notices):
            raise Refusal("format-mismatch", f"{self._folder} is gone")
        self._take(dict.fromkeys(self._folder / notice.name for notice in notices if self._concerns(notice)))

    def _concerns(self, notice: Notice) -> bool:
        file = self._folder / notice.name
        if file != self._path and (self._path != self._folder or not is_known(file)):
            return False
        if self._path == self._folder and file.exists() and not file.is_file():
            return False  # a folder or a pipe of that name
        return bool(notice.mask & (_COMPLETE | _GONE) or (notice.mask & _GROWS and can_grow(file)))

    def _take(self, files: Iterable[Path]) -> None:
        gone = []
        for file in files:
            try:
                self._report(file, self._loader.take(file))
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ELOOP):  # a link that leads nowhere is no file
                    raise
                gone.append(file)
        for file in gone:  # behind the others: one of them may be it, by another name
            self._loader.forget(str(file))

    def close(self) -> None:
        self._inotify.close()

    def __enter__(self) -> Follower:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

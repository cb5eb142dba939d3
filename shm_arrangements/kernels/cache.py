"""The cache of compiled kernels: right after any edit, and safe for processes that start at once.

numba keeps a function's machine code under its name and the state of its own file. Ours is kept under a
fingerprint of what was compiled: the code of the kernel and, in turn, of every function it calls and every
constant it uses, wherever they are defined. So a changed `inner` function of another file is noticed, an
edited comment is not, and no file ever means anything else than it did: two versions of the code may run at
once, and a process killed between two writes leaves nothing that misleads a later one. What is loaded is
checked against a checksum first, so that a torn file is compiled anew instead of being run. A cache that
cannot be written only costs its use.

The first of several processes to need a kernel compiles it, the others wait for it and load: a lock on the
kernel's source file says so. The lock saves work and is not needed to be right, so nobody waits for it long.

Where it lies is numba's choice: NUMBA_CACHE_DIR, else `__pycache__` beside the source, else, where that may
not be written, the user's cache directory.

Does not: remove more than the older states of a kernel that it writes anew.
Form: numba's index and data files (numba.core.caching), by a locator of our own.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import os
import pickle
import sys
import time
import types
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numba.core import caching as _caching

caching: Any = _caching  # numba has no types
_LOCK_WAIT_S: Final = 30.0  # far longer than a kernel compiles; the holder may be stopped
_LOCK_STEP_S: Final = 0.02
# What reading a cut or foreign pickle raises.
_CORRUPT: Final = (
    pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError,
    ImportError, MemoryError,
)  # fmt: skip


def fingerprint(function: Callable[..., Any]) -> str:
    """A name for what `function` compiles to: the same for the same code, whatever else its files hold."""
    digest = hashlib.sha256()
    for part in _parts(function, set()):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:20]


def _parts(function: Any, seen: set[Any]) -> Iterator[str]:
    if function in seen:
        return
    seen.add(function)
    names: set[str] = set()
    yield function.__qualname__
    yield from _code_parts(function.__code__, names)
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found = {name: cell.cell_contents for name, cell in cells}
    found.update((name, function.__globals__[name]) for name in names if name in function.__globals__)
    yield repr(function.__defaults__)
    for name in sorted(found):
        yield name
        yield from _value_parts(found[name], function, names, seen)


def _code_parts(code: types.CodeType, names: set[str]) -> Iterator[str]:
    yield repr((code.co_code, code.co_names, code.co_varnames, code.co_argcount))
    names.update(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_parts(constant, names)
        else:
            yield repr(constant)


def _value_parts(value: Any, user: Any, names: set[str], seen: set[Any]) -> Iterator[str]:
    """What a global or closed-over name stands for, as far as it can change what is compiled."""
    if hasattr(value, "py_func"):  # compiled by numba: an inner function
        yield from _parts(value.py_func, seen)
    elif isinstance(value, types.FunctionType):
        yield from _parts(value, seen)
    elif isinstance(value, types.ModuleType):
        yield value.__name__
        if value.__name__.split(".")[0] == user.__module__.split(".")[0]:
            for name in sorted(names & vars(value).keys()):
                yield from _value_parts(vars(value)[name], user, names, seen)
    elif isinstance(value, types.BuiltinFunctionType | type):
        yield value.__qualname__
    elif isinstance(value, np.ndarray):
        yield repr((value.dtype, value.shape, value.tobytes()))
    elif type(value).__module__.split(".")[0] in ("builtins", "numpy"):
        yield repr((type(value).__name__, value))
    else:  # an intrinsic, or a type of numba: as its file is
        module = sys.modules.get(getattr(value, "__module__", None) or "")
        yield type(value).__qualname__
        yield Path(inspect.getfile(module or user)).read_text()


class _ByFingerprint:
    """How a locator of numba names the files of a function."""

    def __init__(self, py_func: Any, py_file: str) -> None:
        super().__init__(py_func, py_file)  # type: ignore[call-arg]
        self._fingerprint = fingerprint(py_func)

    def get_source_stamp(self) -> str:
        return self._fingerprint

    def get_disambiguator(self) -> str:
        return self._fingerprint


class _Provided(_ByFingerprint, caching.UserProvidedCacheLocator):  # type: ignore[misc]
    pass


class _InTree(_ByFingerprint, caching.InTreeCacheLocator):  # type: ignore[misc]
    pass


class _UserWide(_ByFingerprint, caching.UserWideCacheLocator):  # type: ignore[misc]
    pass


class _Sealed(caching.CompileResultCacheImpl):  # type: ignore[misc]
    """What goes to a file and back: the compiled function, with a checksum."""

    _locator_classes = (_Provided, _InTree, _UserWide)

    def reduce(self, cres: Any) -> tuple[int, bytes]:
        data = caching.dumps(super().reduce(cres))
        return zlib.crc32(data), data

    def rebuild(self, target_context: Any, payload: tuple[int, bytes]) -> Any:
        checksum, data = payload
        if zlib.crc32(data) != checksum:
            raise ValueError("a cached kernel is not as it was written")
        return super().rebuild(target_context, pickle.loads(data))


def cache_of(function: Callable[..., Any]) -> KernelCache | None:
    """The cache of a function; None if there is no place for one."""
    try:
        return KernelCache(function)
    except RuntimeError:  # numba's, when no locator found a directory that may be written
        return None


class KernelCache(caching.FunctionCache):  # type: ignore[misc]
    """numba's cache of one function, named by fingerprint, checked, and filled by one process at a time."""

    _impl_class = _Sealed

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._source = inspect.getfile(function)
        self._lock: int | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function, or None: then this process compiles it, and `release` must follow."""
        found = self._load(sig, target_context)
        if found is None:
            self._acquire()
            found = self._load(sig, target_context)
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
            self._prune()
        except OSError:
            pass  # a full or vanished cache: what was compiled is used all the same

    def release(self) -> None:
        """Let others go on that wait for this kernel."""
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # a child forked meanwhile may hold the file open
            os.close(self._lock)
            self._lock = None

    def _load(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except _CORRUPT:
            try:
                self.flush()
            except OSError:
                self.disable()
        except OSError:
            self.disable()
        return None

    def _acquire(self) -> None:
        deadline = time.monotonic() + _LOCK_WAIT_S
        try:
            self._lock = os.open(self._source, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        while time.monotonic() < deadline:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_LOCK_STEP_S)
            except OSError:  # a file system without locks
                return
            else:
                return

    def _prune(self) -> None:
        """Remove what older states of this kernel left."""
        base = self._impl.filename_base
        name, _, rest = base.rpartition(f"-{self._impl.locator.get_disambiguator()}")
        for path in Path(self.cache_path).glob(f"{name}-*{rest}.*"):
            if not path.name.startswith(base):
                path.unlink(missing_ok=True)

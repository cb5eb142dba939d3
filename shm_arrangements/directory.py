"""What there is in /dev/shm by name, and what it means when no descriptor is left to look with.

Does not: import numpy (the reaper uses it), or know what a name means.
"""

from __future__ import annotations

import errno
import os
import resource

from shm_arrangements.errors import RegistryFull
from shm_arrangements.names import SHM_DIRECTORY


def list_names(prefix: str) -> list[str]:
    """The names in shared memory that begin so. Raises: RegistryFull if no descriptor is left."""
    try:
        return [name for name in os.listdir(SHM_DIRECTORY) if name.startswith(prefix)]
    except OSError as error:
        raise opening_error(error, SHM_DIRECTORY) from error


def open_name(name: str, flags: int) -> int:
    """A descriptor of a name in shared memory, closed on exec; a new file is of mode 0600.

    Raises: RegistryFull if none is left; OSError.
    """
    try:
        return os.open(f"{SHM_DIRECTORY}/{name}", flags | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise opening_error(error, name) from error


def opening_error(error: OSError, name: str) -> Exception:
    """What to raise for an error of opening: RegistryFull if descriptors ran out, else itself."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return too_many(resource.getrlimit(resource.RLIMIT_NOFILE)[0], name)
    return error


def too_many(used: int, name: str) -> RegistryFull:
    """What to raise where `used` descriptors leave no room for `name`."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return RegistryFull("too many descriptors", used=used, limit=limit, name=name, hint="raise `ulimit -n`")

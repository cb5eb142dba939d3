"""Place: where a replica and its shards are, as a user tells it.

Does not: begin a session.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from errno import ENOENT
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterd.storage.data_dir import directory_of
from clusterd.storage.store import Store
from controller_proto.address import cannot_connect, parse_address, peer_pid
from shm_arrangements.errors import NoSuchInstance
from shm_arrangements.instance import list_instances

if TYPE_CHECKING:
    from clusterd.launcher import Replica

__all__ = ["Place", "instance_at", "instance_of", "open_store", "place_of"]


class Place(NamedTuple):
    """data_dir: where shards are, or a URI of that (storage/place.py). instance: the token of the replica's
    shared memory, if it was told; config: to begin a session with.
    """

    address: str
    data_dir: Path | str | None
    instance: str | None
    config: dict[str, Any]


def place_of(
    where: str | Replica,
    data_dir: Path | str | None,
    instance: str | None,
    config: Mapping[str, Any] | None,
) -> Place:
    """A launched replica knows all of it; of an address the rest has to be told."""
    config = dict(config or {})
    if isinstance(where, str):
        return Place(where, data_dir, instance, config)
    data_dir = where.data_dir if data_dir is None else data_dir
    return Place(where.address, data_dir, where.instance, {**where.config, **config})


def open_store(data_dir: Path | str | None) -> Store | None:
    """The shards of a replica that is there. Raises FileNotFoundError, DataDirMismatch."""
    if data_dir is None:
        return None
    directory = directory_of(data_dir)
    if directory is not None and not directory.exists():
        raise FileNotFoundError(ENOENT, "no such data_dir; give the replica's --data-dir", str(data_dir))
    return Store.open(data_dir, create=False)


def instance_at(where: str) -> str:
    """The token of a replica's shared memory, for `attach(ID, instance_at("unix:clusterd.sock"))`.

    where: its address, of a unix socket; a token is what it is. Raises OSError if nobody listens;
    NoSuchInstance; LocalProtocolError if it is an address of no kind.
    """
    if ":" not in where:
        return where
    family, address = parse_address(where)
    token = None
    if family == socket.AF_UNIX:
        with socket.socket(socket.AF_UNIX) as end:
            try:
                end.connect(address)
            except OSError as error:
                raise cannot_connect(where, error) from error
            token = instance_of(peer_pid(end))
    if token is None:
        hint = "give the token of its READY line; `shm-arrangements ls` lists all"
        raise NoSuchInstance("no instance can be told from this address", address=where, hint=hint)
    return token


def instance_of(pid: int | None) -> str | None:
    """The living instance whose supervisor is `pid`, if there is exactly one."""
    if pid is None:
        return None
    tokens = [each.token for each in list_instances() if each.alive and each.pid == pid]
    return tokens[0] if len(tokens) == 1 else None

"""No connections: what tries to make one fails, and is remembered."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock


@contextmanager
def refusing_connections() -> Iterator[list[str]]:
    """Inside, this process can look up no host and connect to none; the list says which were tried.

    Sockets of this machine's file system are let through: worker processes use them.
    """
    tried: list[str] = []
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex

    def refuse(target: Any) -> OSError:
        tried.append(str(target[0] if isinstance(target, tuple) else target))
        return ConnectionRefusedError(f"docqa doctor lets nothing connect, and {tried[-1]} was asked for")

    def checked_connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX:
            raise refuse(address)
        connect(self, address)

    def checked_connect_ex(self: socket.socket, address: Any) -> int:
        if self.family != socket.AF_UNIX:
            raise refuse(address)
        return connect_ex(self, address)

    def look_up(host: Any, *_: Any, **__: Any) -> Any:
        raise refuse(host)

    with (
        mock.patch.object(socket.socket, "connect", checked_connect),
        mock.patch.object(socket.socket, "connect_ex", checked_connect_ex),
        mock.patch.object(socket, "getaddrinfo", look_up),
    ):
        yield tried

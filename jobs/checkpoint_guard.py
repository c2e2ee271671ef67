"""A way back from a checkpoint that was cut off: what it overwrites in place is kept beside the database meanwhile.

DuckDB writes a checkpoint to free blocks and makes it count by writing a header last, so a process may die at any
moment. Blocks of metadata are the exception: they hold many small pieces, and new pieces go into the free places of a
block that is in use. The pieces in use stay as they are, but a process that is killed (or a machine that loses power)
in the middle of that write leaves a block whose checksum is wrong, and DuckDB refuses the whole file from then on.

So before a checkpoint the metadata blocks go to `<database>.undo`. If one of them is torn and the headers are still
those of before, the next who opens the database for writing puts the kept block back: the state is then that of
before the checkpoint, and the write-ahead log still has what the checkpoint was to write.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from array import array
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb

from jobs.durable import sync_folder

_MAGIC = b"docqa undo 1\n"
_HEADERS_BYTES = 3 * 4096
"""DuckDB's file begins with its main header and two headers that take turns; blocks follow."""
_SIZES = struct.Struct("<QQ")  # bytes of a block, number of blocks
_BLOCK_ID = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<Q")
_DIGEST_BYTES = hashlib.sha256().digest_size


def undo_path(database: str | os.PathLike[str]) -> Path:
    """`<database>.undo`, beside the real file if `database` is a link."""
    real = Path(os.path.realpath(database))
    return real.with_name(real.name + ".undo")


class CheckpointGuard:
    """Guards the checkpoint of one window in which we write to a database.

    Closed after the connection is: DuckDB's lock on the file is one of POSIX, which a process loses when it closes any
    descriptor of that file.
    """

    def __init__(self, database: Path) -> None:
        self._path = undo_path(database)
        self._descriptor = os.open(database, os.O_RDONLY | os.O_CLOEXEC)

    def checkpoint(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Write what the write-ahead log holds into the database; no transaction may be open.

        Raises duckdb.Error and OSError; then the kept blocks stay, for whoever opens the database next.
        """
        self._keep(connection)
        connection.execute("CHECKPOINT")
        self._path.unlink()

    def close(self) -> None:
        """Close the file; call it when the connection is closed."""
        os.close(self._descriptor)

    def _keep(self, connection: duckdb.DuckDBPyConnection) -> None:
        ((block_bytes,),) = connection.execute("SELECT block_size FROM pragma_database_size()").fetchall()
        end = os.fstat(self._descriptor).st_size
        found = connection.execute("SELECT block_id FROM pragma_metadata_info() ORDER BY block_id").fetchall()
        block_ids = [number for (number,) in found if _offset(number, block_bytes) + block_bytes <= end]
        parts = [_MAGIC, _SIZES.pack(block_bytes, len(block_ids)), os.pread(self._descriptor, _HEADERS_BYTES, 0)]
        for number in block_ids:
            parts += [
                _BLOCK_ID.pack(number),
                os.pread(self._descriptor, block_bytes, _offset(number, block_bytes)),
            ]
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        with open(self._path, "wb") as file:
            file.writelines([*parts, digest.digest()])
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._path.parent)


def mend(database: Path) -> int:
    """Put back the blocks that a checkpoint tore, if one did; returns how many.

    The caller holds the output's lock, so no checkpoint of ours is on. Raises BlockingIOError while another process
    has the database open, and OSError.
    """
    path = undo_path(database)
    try:
        kept = _read(path.read_bytes())
        descriptor = os.open(database, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        kept, descriptor = None, None
    mended = 0
    if descriptor is not None:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if kept is not None and os.pread(descriptor, _HEADERS_BYTES, 0) == kept.headers:
                mended = _put_back(descriptor, kept)
        finally:
            os.close(descriptor)
    with suppress(FileNotFoundError):
        path.unlink()
    return mended


@dataclass(frozen=True, slots=True)
class _Kept:
    headers: bytes
    block_bytes: int
    blocks: dict[int, bytes]


def _read(content: bytes) -> _Kept | None:
    """What a file of kept blocks holds; None if it was cut off: then its checkpoint had not begun."""
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if not body.startswith(_MAGIC) or hashlib.sha256(body).digest() != digest:
        return None
    block_bytes, number_of_blocks = _SIZES.unpack_from(body, len(_MAGIC))
    start = len(_MAGIC) + _SIZES.size
    headers = body[start : start + _HEADERS_BYTES]
    start += _HEADERS_BYTES
    blocks = {}
    for _ in range(number_of_blocks):
        (number,) = _BLOCK_ID.unpack_from(body, start)
        start += _BLOCK_ID.size
        blocks[number] = body[start : start + block_bytes]
        start += block_bytes
    return _Kept(headers, block_bytes, blocks)


def _put_back(descriptor: int, kept: _Kept) -> int:
    mended = 0
    for number, block in kept.blocks.items():
        offset = _offset(number, kept.block_bytes)
        if not is_whole(os.pread(descriptor, kept.block_bytes, offset)):
            os.pwrite(descriptor, block, offset)
            mended += 1
    os.fsync(descriptor)
    return mended


def is_whole(block: bytes) -> bool:
    """Whether a block of a DuckDB file has the checksum that stands in its first eight bytes.

    As DuckDB's storage defines it: the exclusive or of all following 64-bit words, each times a constant, and 5381.
    """
    checksum = 5381
    for word in array("Q", block[_CHECKSUM.size :]):
        checksum ^= word * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    return _CHECKSUM.unpack_from(block)[0] == checksum


def _offset(block_id: int, block_bytes: int) -> int:
    return _HEADERS_BYTES + block_id * block_bytes

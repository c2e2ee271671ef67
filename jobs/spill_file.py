"""A file without a name for what a plan holds that is large: texts and token ids, written once and read in pieces.

So they take no memory of the process. While the machine has memory to spare, its file cache holds them, and a piece is
read in microseconds; when it has none, they lie on the disk.
"""

from __future__ import annotations

import os
import tempfile
from io import FileIO

from jobs.errors import JobError


class SpillFile:
    """Bytes by the place at which they were written; gone with the object. Reading is safe from any thread.

    The file lies in the folder for temporary files (TMPDIR), once something is written. Raises JobError if that can't
    be done.
    """

    def __init__(self) -> None:
        self._file: FileIO | None = None
        self._descriptor = -1
        self._size = 0
        self._newest = (0, 0, b"")  # what was read last, as rows of one document follow each other

    def write(self, content: bytes | memoryview) -> int:
        """Add some bytes; returns the place to read them from."""
        place, view = self._size, memoryview(content).cast("B")
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="docqa-", buffering=0)  # noqa: SIM115
                self._descriptor = self._file.fileno()
            while view:
                written = os.pwrite(self._descriptor, view, self._size)
                self._size, view = self._size + written, view[written:]
        except OSError as error:
            raise JobError(
                f"{_folder()}: {self._size:,} bytes of documents were written here, and no more can be "
                f"({error.strerror}); make room, or set TMPDIR to a folder that has some"
            ) from error
        return place

    def read(self, place: int, size: int) -> bytes:
        """`size` bytes from a place."""
        newest_place, newest_size, content = self._newest
        if (newest_place, newest_size) == (place, size):
            return content
        content = os.pread(self._descriptor, size, place)
        while len(content) < size:
            more = os.pread(self._descriptor, size - len(content), place + len(content))
            assert more, "more was asked for than was written"
            content += more
        self._newest = (place, size, content)
        return content


def _folder() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:
        return "TMPDIR"

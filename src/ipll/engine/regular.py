"""Only regular files are read. A named pipe would let us wait for ever, a device might never end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_regular(path: str | Path) -> None:
    """Raises an OSError, whose `strerror` says what lies there, unless it is a regular file or a link to one.

    Those who read a file tell what the disk refuses; this is told the same way, and before the file is opened.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))


def clear_link(path: Path) -> None:
    """For a file that is about to be written: a link there is removed, since it may lead to any file of the user's;
    what is no regular file is an OSError, as of `check_regular`."""
    if path.is_symlink():
        path.unlink()
    if path.exists():
        check_regular(path)

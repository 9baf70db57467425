"""The program's first lines. They import nothing that takes time, so that Ctrl-C is no traceback from then on."""

from __future__ import annotations

import os
import signal


def main() -> None:
    try:
        from ipll.cli import main as program
    except KeyboardInterrupt:
        os.write(2, b"Stopped.\n")
        os._exit(128 + signal.SIGINT)  # nothing has begun; a second Ctrl-C finds nothing to interrupt either
    program()


if __name__ == "__main__":
    main()

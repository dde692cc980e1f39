"""A command that ends when the process that started it does, however that one ended.

    python -m examples.demo.tied PARENT COMMAND...

Linux sends us a SIGTERM when the parent is gone, kill -9 included, and keeps that promise for the command we then
become. The promise is made here and not between fork and exec, where Python code may hang if the parent has threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        if prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit(f"Process {parent}, which started this, is gone.")  # It ended before the promise was made.
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

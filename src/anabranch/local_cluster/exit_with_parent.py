"""A process that exits when the one that started it does, however that one ended.

Called by the child and not between fork and exec, where Python code may hang if the parent has threads.
"""

import ctypes
import os
import signal
import sys

from anabranch.errors import LocalClusterError

PR_SET_PDEATHSIG = 1


def exit_with_parent(parent: int) -> None:
    """Have Linux send this process a SIGTERM when the parent is gone, kill -9 included."""
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        if prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # It ended before this was set up.
        raise LocalClusterError(f"Process {parent}, which started this one, is gone.")

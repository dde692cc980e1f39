"""A process that ends when the one that started it does, however that one ended."""

import ctypes
import os
import signal
import sys

from anabranch.errors import LocalClusterError

PR_SET_PDEATHSIG = 1


def tie_to(parent: int) -> None:
    """Linux sends this process a SIGTERM when the parent is gone, kill -9 included."""
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        if prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # It ended before the promise was made.
        raise LocalClusterError(f"Process {parent}, which started this broker, is gone.")

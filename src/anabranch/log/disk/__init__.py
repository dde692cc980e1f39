"""The disk: the `Files` protocol, its real implementation, and small state files that are replaced atomically.

Everything above runs the same on `RealFiles` and on the `FakeDisk` of `anabranch.testing`.
"""

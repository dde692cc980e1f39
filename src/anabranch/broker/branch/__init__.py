"""Mode branch: partitions that are written on both sides of a split, and joined when it ends.

Carries out what `modes.branch` decides. A partition's records lie in lanes (`lanes/`), joined by the rows of the
branch log.
"""

"""This broker's member of the metadata quorum: its log, its disk, who waits for it, and the orchestrator.

The decisions are in `cluster`; here they are written, proposed and applied.
"""

"""A cluster of real broker processes on this machine: where they are, how they start, how they end.

Shared by the commands that start one (`anabranch cluster up`, `anabranch up --workers`) and by the test fixture. It
knows settings and the command line of `anabranch up`, and nothing of what runs inside a broker.
"""

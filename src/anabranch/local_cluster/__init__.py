"""A cluster of real broker processes on this machine: where they are, how they start, how they end; and the small
blocking client that asks any cluster about itself.

Shared by the commands that start one (`anabranch cluster up`, `anabranch up --workers`) and by the test fixture. It
knows settings, the command line of `anabranch up` and the Kafka protocol, and nothing of what runs inside a broker.
"""

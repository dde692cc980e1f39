"""What we test with, shipped to users: a disk and a clock that fail on purpose, a broker inside the test process,
and a simulator.

The top room: it may know every other one, and none knows it. Nothing here is imported until it is used, so that the
pytest plugin costs a test run that never asks for it nothing.
"""

"""Real Kafka clients against one node: what a user's program would do, through the program's own library.

The node under test is a separate process (`support.node_process`); set ANABRANCH_TEST_BOOTSTRAP to run the same
tests against another broker, such as Apache Kafka, which is how the tests themselves are checked.
Scenarios that every client must pass live in `scenarios.py`; a test file adapts its client to them and adds
what only that client can do. Tools from other registries come through `registries.py`.
"""

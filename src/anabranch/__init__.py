"""anabranch: a streaming log that speaks Kafka's wire protocol.

Importing this package imports nothing else, so that the command line and the pytest plugin start fast.
"""

__version__ = "0.1.0"

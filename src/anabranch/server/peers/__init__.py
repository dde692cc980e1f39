"""Connections between brokers: listener, dialler, handshake, and one link per pair of brokers.

Carries the messages of `broker.peers` as frames, and knows nothing of what they mean.
"""

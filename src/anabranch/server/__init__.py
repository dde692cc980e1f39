"""The only room that touches sockets: accepts connections, cuts bytes into frames, keeps answers in order.

Knows the broker by `handlers.dispatch` and the wire room by its framing rules. Everything runs on the loop's
thread with raw non-blocking sockets; what a connection may hold in memory is bounded, alone and together.
"""

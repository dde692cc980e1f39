"""The node's HTTP port: records in and out by HTTP and WebSocket, metrics and health.

Knows the broker through `calls.py` alone, which asks what a Kafka client would ask, of whichever broker leads. Web
libraries (starlette, uvicorn, websockets) are known here and nowhere else, and are loaded with the first connection.
"""

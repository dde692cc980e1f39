"""HTTP itself: the port, the web server behind it, who is let in, and the bounds of a request.

Knows nothing of topics or records; starlette and uvicorn are loaded with the first connection.
"""

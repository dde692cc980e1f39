"""WebSockets: the messages, one session per socket, and the subscriptions of a session."""

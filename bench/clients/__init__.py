"""Real clients as programs of their own: each takes the same words and answers with one line of JSON."""

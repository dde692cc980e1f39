"""Lanes: what one leadership wrote, as a log of its own; and the way from a log to lanes and back."""

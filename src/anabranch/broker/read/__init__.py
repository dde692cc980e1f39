"""Fetches: the sessions they belong to, and those that wait for bytes."""

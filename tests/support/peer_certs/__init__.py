"""Certificates of two authorities that exist for these tests alone."""

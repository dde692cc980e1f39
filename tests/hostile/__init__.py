"""Requests built to cost a node as much as possible, and what they cost it. `make hostile` runs all of them."""

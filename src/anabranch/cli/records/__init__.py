"""`anabranch produce` and `anabranch consume`, and records as lines of text."""

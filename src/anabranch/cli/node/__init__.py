"""`anabranch up`: one node until Ctrl-C, with its banner, logs and memory policy."""

"""`anabranch doctor`: is this machine fit to run a node?"""

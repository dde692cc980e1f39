"""`anabranch log`: a data folder while no node runs on it."""

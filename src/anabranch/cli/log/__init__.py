"""`anabranch log`: verify, dump and repair a data folder while no node runs on it."""

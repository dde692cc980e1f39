"""What lies where in the object store, as the cluster agrees on it: rows of coordinates, snapshots, upkeep, restore."""

"""`anabranch cluster`: start a local cluster, and watch and change a running one."""

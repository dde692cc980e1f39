"""`anabranch pipeline`: Spark jobs from the command line, one file each."""

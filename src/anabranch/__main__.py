"""`python -m anabranch` is `anabranch`, also where no such program was installed on the PATH."""

from anabranch.cli.main import program

if __name__ == "__main__":
    program()

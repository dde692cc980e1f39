"""`python -m anabranch` is `anabranch`, also where no such program was installed on the PATH."""

from anabranch.cli.main import main

if __name__ == "__main__":
    main(prog_name="anabranch")

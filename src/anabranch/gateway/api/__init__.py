"""The routes of the HTTP port, one file per resource; `routes.py` is the table of all of them."""

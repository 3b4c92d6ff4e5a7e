"""One operator of a plan each: rows in, rows out, as queries/reference.py defines them."""

"""Each file is one operator of a plan: rows in, rows out, as queries/reference.py defines it."""

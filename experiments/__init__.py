"""Measurements that anyone can repeat; they may import all of ours but peerd.

benches/ has what `make bench` runs. sand/ and the cqdht modules repeat the figures of papers. sweep.py, report.py and
plots.py run the cells of an experiment, print what came out, and draw it.
"""

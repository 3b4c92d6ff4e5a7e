"""Where the operators of a query run: SAND's algorithms (Ahmad and Çetintemel, VLDB 2004), and the optimum."""

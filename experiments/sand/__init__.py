"""The figures of SAND (placement of a query's operators), one module for each; model.py has what they share."""

"""IFLOW's figures on the planners that peers run: integrated planning and deployment beside planning in phases."""

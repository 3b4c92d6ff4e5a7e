-- Eddies prints plans, not texts: these streams and queries have its plans' shape.
CREATE STREAM A (id int, x int);
CREATE STREAM B (x int, y int);
CREATE STREAM C (y int, z int);

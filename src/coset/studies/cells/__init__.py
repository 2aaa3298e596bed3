"""What the studies compute: one module a study, a function of a cell's parameters and a seed."""

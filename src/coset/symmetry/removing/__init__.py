"""One point for every orbit: canonical forms, the smallest mass, and the order of units."""

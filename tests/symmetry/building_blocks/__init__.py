"""Building blocks of random programs; `tests.symmetry.fuzz` puts them together."""

"""Positive scales on top of permutations and signs: looked at, fitted, chosen."""

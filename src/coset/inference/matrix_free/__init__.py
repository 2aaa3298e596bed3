"""Linearised Laplace through posterior samples, for networks of any size."""

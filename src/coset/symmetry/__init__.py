"""Symmetries of a network's weights: found, acted with, checked, removed."""

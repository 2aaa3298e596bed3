"""Alignment: moves networks along their orbits so that they can be compared and averaged."""

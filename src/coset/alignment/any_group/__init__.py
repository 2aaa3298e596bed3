"""Coordinate ascent for any group: nested factors, recurrent matrices, signs of layers."""

"""A symmetry group for people: tables, reasons and pictures."""

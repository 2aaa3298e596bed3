"""Networks with hand-derived symmetries; `tests.symmetry.cases` collects them."""

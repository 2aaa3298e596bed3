"""Bayesian deep learning modulo symmetries."""

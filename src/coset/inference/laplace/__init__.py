"""The linearised Laplace approximation: weights, curvature, precisions, covariance."""

"""Trained networks that several files of this room use."""

import pytest
from laplace_problems import blobs, classifier, regressor, train, wave


@pytest.fixture
def regression():
    data = wave()
    return train(regressor(), *data), data


@pytest.fixture
def classification():
    data = blobs()
    return train(classifier(), *data), data

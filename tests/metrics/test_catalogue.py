import pytest

import coset.metrics
from coset.errors import CosetError
from coset.metrics.catalogue import CATALOGUE, metric_named


def test_names_are_those_of_public_functions():
    for metric in CATALOGUE:
        assert getattr(coset.metrics, metric.name) is metric.function


def test_names_are_unique():
    assert len({metric.name for metric in CATALOGUE}) == len(CATALOGUE)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(CosetError, match=r"no metric 'ece'; needed one of accuracy"):
        metric_named("ece")

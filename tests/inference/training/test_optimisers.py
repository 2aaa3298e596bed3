import pytest

from coset.errors import CosetError
from coset.inference import SGD, Adam


@pytest.mark.parametrize(
    "build",
    [
        lambda: SGD(0.0),
        lambda: SGD(float("nan")),
        lambda: SGD(0.1, momentum=1.0),
        lambda: SGD(0.1, momentum=0.0, nesterov=True),
        lambda: Adam(-1.0),
        lambda: Adam(0.1, betas=(0.9, 1.0)),
        lambda: Adam(0.1, epsilon=0.0),
    ],
)
def test_settings_without_meaning_are_refused(build):
    with pytest.raises(CosetError, match="needed"):
        build()


def test_slots_count_the_tensors_kept():
    assert [SGD(momentum=0.0).slots, SGD().slots, Adam().slots] == [0, 1, 2]

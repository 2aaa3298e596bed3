import re

from coset.data import sources
from coset.data.datasets import LOADERS
from coset.data.pictures import RECIPES
from coset.data.pixels import PIXEL_LOADERS
from coset.data.sources import SOURCES, ways_to_get


def test_every_row_can_be_got_somehow():
    for source in SOURCES.values():
        assert source.package or source.remotes or source.by_hand
        for remote in source.remotes:
            assert re.fullmatch("md5:[0-9a-f]{32}", remote.checksum)
        if source.compact:
            assert re.fullmatch("[0-9a-f]{64}", source.compact[1])


def test_the_tables_name_the_same_sets():
    assert {name.partition("/")[0] for name in LOADERS | PIXEL_LOADERS} == set(SOURCES)
    assert set(RECIPES) < set(SOURCES)


def test_ways_are_numbered():
    for name in SOURCES:
        numbers = [int(number) for number in re.findall(r"\((\d+)\) ", ways_to_get(name))]
        assert numbers == list(range(1, len(numbers) + 1))


def test_an_absent_package_is_none():
    assert sources._package_folder("no_such_package_anywhere", "x") is None

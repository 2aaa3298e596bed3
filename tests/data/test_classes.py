from coset.data import classes


def test_counts_and_order():
    assert len(set(classes.CIFAR100)) == 100
    assert list(classes.CIFAR100) == sorted(classes.CIFAR100)  # the official order
    for ten in (classes.DIGITS, classes.FASHION, classes.KUZUSHIJI, classes.LETTERS):
        assert len(set(ten)) == 10
    assert list(classes.CIFAR10) == sorted(classes.CIFAR10)


def test_overlaps_are_told_for_known_classes():
    assert set(classes.SAME_THING) <= set(classes.CIFAR10)

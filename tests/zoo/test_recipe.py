"""Recipes: what a file says is what a training gets, and slips of the pen are named."""

import os

import pytest
import torch

from coset.errors import CosetError
from coset.zoo import read_recipe, recipes
from coset.zoo.making import check_recipe
from coset.zoo.recipe import recipe_from

TEXT = """
about = "a test"
[architecture]
model = "mlp"
hidden = [8]
[data]
set = "digits"
train = 100
[training]
epochs = 3
learning_rate = 1
schedule = "steps"
drop_at = [1, 2]
[keep]
epochs = [2]
"""


def written(tmp_path, *changes):
    text = TEXT
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def test_a_file_is_read_with_its_name(tmp_path):
    recipe = read_recipe(written(tmp_path))
    assert (recipe.name, recipe.architecture.arguments) == ("mine", {"hidden": [8]})
    assert (recipe.training.drop_at, recipe.training.learning_rate) == ((1, 2), 1.0)
    assert recipe.augmentation.crop == 0
    assert recipe.keep.epochs == (2,)


@pytest.mark.parametrize("name", recipes())
def test_those_that_come_along_can_be_read_and_written(name):
    recipe = read_recipe(name)
    assert recipe.name == name
    assert recipe_from(recipe.as_json(), where="a file") == recipe


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("COSET_DATA"), reason="COSET_DATA is not set")
@pytest.mark.parametrize("name", ["resnet20-frn-cifar10-small", "resnet18-tiny-imagenet-small"])
def test_networks_and_data_of_small_twins_fit(name):
    """Outputs and gradients of a first batch; pictures lie channel by channel."""
    problem = check_recipe(read_recipe(name))
    shown, _ = problem.train.rows(torch.arange(6))
    assert shown.is_contiguous()
    assert next(iter(problem.train))[0].is_contiguous()


def test_the_digest_tells_recipes_apart_and_not_their_names(tmp_path):
    recipe = read_recipe(written(tmp_path))
    assert recipe.digest == read_recipe(written(tmp_path, ("a test", "another"))).digest
    assert recipe.digest != read_recipe(written(tmp_path, ("train = 100", "train = 99"))).digest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("epochs = 3", "epohcs = 3"), "got the key 'epohcs' in [training] of mine.toml"),
        (("epochs = 3", "epohcs = 3"), "did you mean 'epochs'?"),
        (("[keep]", "[kept]"), "did you mean 'keep'?"),
        (("epochs = 3", "epochs = 0"), "got training.epochs = 0"),
        (("epochs = 3", "epochs = 2.5"), "needed a whole number"),
        (("epochs = 3", "epochs = true"), "needed a whole number"),
        (("epochs = 3", "batch_size = 3"), "got [training] of mine.toml without 'epochs'"),
        (('set = "digits"', "set = 3"), "needed a text"),
        (('"steps"', '"step"'), "needed one of constant, cosine, one-cycle, steps"),
        (("[1, 2]", "[2, 1]"), "needed epochs from 1 to 3, in order"),
        (("[1, 2]", "1"), "needed a list"),
        (("[2]", "[4]"), "got keep.epochs = 4"),
        (("learning_rate = 1", "learning_rate = -1"), "got training.learning_rate = -1.0"),
        (("[data]", "[data"), "which is no TOML"),
        (("[architecture]", "architecture = 3\n[drop]"), "needed a table"),
    ],
)
def test_slips_are_named(tmp_path, change, words):
    with pytest.raises(CosetError) as caught:
        read_recipe(written(tmp_path, change))
    assert words in str(caught.value)


def test_what_is_not_there_or_no_text_is_refused(tmp_path):
    with pytest.raises(CosetError, match="did you mean 'tiny'"):
        read_recipe("tinny")
    with pytest.raises(CosetError, match="No such file"):
        read_recipe(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(CosetError, match="which is no text"):
        read_recipe(tmp_path / "bytes.toml")

"""InferenceX's config keys as recipes: read, expanded as upstream does, checked, loaded, and exported."""

from pytest_gpubench.recipe.inferencex.expand import Filters, expand_entry
from pytest_gpubench.recipe.inferencex.export import not_expressed, to_recipe_yaml
from pytest_gpubench.recipe.inferencex.load import MasterFile, load_inferencex, stem_of
from pytest_gpubench.recipe.inferencex.matrix import GeneratedEntry
from pytest_gpubench.recipe.inferencex.topology import inferencex_block

__all__ = [
    "Filters",
    "GeneratedEntry",
    "MasterFile",
    "expand_entry",
    "inferencex_block",
    "load_inferencex",
    "not_expressed",
    "stem_of",
    "to_recipe_yaml",
]

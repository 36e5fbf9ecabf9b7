"""The catalogue: every file in the topic folders that ends with `failure = ...` is a mode, discovered automatically."""

import importlib
import pkgutil

from labkit import failures
from labkit.errors import near
from labkit.failures.mode import FailureMode


class UnknownFailure(KeyError):
    def __str__(self) -> str:  # KeyError would show the message in quotes
        return self.args[0]


class Catalogue(dict[str, FailureMode]):
    """Name -> failure mode; the error for an unknown name suggests the nearest."""

    def _repr_html_(self) -> str:
        from labkit.failures.catalogue_table import catalogue_html  # only a notebook needs it

        return catalogue_html(self)

    def __rich__(self):
        from labkit.failures.catalogue_table import CatalogueTable

        return CatalogueTable(self)

    def __getitem__(self, name: str) -> FailureMode:
        if not isinstance(name, str):  # a list cannot even be looked up
            raise UnknownFailure(f"a failure mode is found by its name, got {name!r}. {near(name, self)}")
        return super().__getitem__(name)

    def __missing__(self, name: str):
        raise UnknownFailure(f"there is no failure mode {name!r}. {near(name, self)}")


def _discover() -> Catalogue:
    found = Catalogue()
    for _, path, is_package in sorted(
        pkgutil.walk_packages(failures.__path__, f"{failures.__name__}."), key=lambda item: item[1]
    ):
        *_, topic, name = path.split(".")
        if not is_package and topic != "failures":  # modules outside the topic folders are not modes
            module = importlib.import_module(path)
            if hasattr(module, "failure"):  # else it holds helpers of several modes
                found[name] = module.failure
    return found


FAILURES = _discover()
# The failures that everybody should know, in the order of the poster.
HEADLINES = tuple(
    sorted((name for name in FAILURES if FAILURES[name].headline), key=lambda name: FAILURES[name].headline)
)

"""The catalogue: every file in these folders that closes with `failure` is a failure mode, found by being there."""

import dataclasses
import importlib
import pkgutil

from labkit.failures.mode import FailureMode
from labkit.training.rules import near


class UnknownFailure(KeyError):
    def __str__(self) -> str:  # KeyError would show the message in quotes
        return self.args[0]


class Catalogue(dict[str, FailureMode]):
    """Name -> failure mode; an unknown name suggests the nearest."""

    def _repr_html_(self) -> str:
        from labkit.drawing.html import catalogue_html  # only a notebook needs it

        return catalogue_html(self)

    def __rich__(self):
        from labkit.drawing.html import CatalogueTable

        return CatalogueTable(self)

    def __missing__(self, name: str):
        raise UnknownFailure(f"there is no failure mode {name!r}. {near(name, self)}")


def _discover() -> Catalogue:
    found = Catalogue()
    for _, path, is_package in sorted(pkgutil.walk_packages(__path__, f"{__name__}."), key=lambda item: item[1]):
        if not is_package and path.count(".") == 3:  # labkit.failures.topic.name
            topic, name = path.split(".")[-2:]
            mode = importlib.import_module(path).failure
            found[name] = dataclasses.replace(mode, name=name, topic=topic)
    return found


FAILURES = _discover()

"""Stands in for torch where only recorded runs are read: the recipes of the catalogue name layers, losses and dtypes.

A signature reads arrays, so nothing here computes. What is named exists; calling it is an error that says so.
"""

import importlib.machinery
import sys
import types


class Anything(type):
    """The type of everything that torch has: a class to inherit from, with attributes that are such classes too."""

    def __getattr__(cls, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        made = Anything(name, (), {"__module__": "torch"})
        setattr(cls, name, made)
        return made

    def __call__(cls, *arguments, **options):
        if cls.__module__ != "torch":  # a class of labkit that inherits from one of torch
            return super().__call__(*arguments, **options)
        if len(arguments) == 1 and isinstance(arguments[0], types.FunctionType):  # a decorator: @torch.no_grad()
            return arguments[0]
        return cls

    def __or__(cls, other):
        return cls

    __ror__ = __or__

    def __getitem__(cls, item):
        return cls

    def __mro_entries__(cls, bases):
        return ()


class Torch(types.ModuleType):
    """A module whose every name exists."""

    __path__ = ()
    __version__ = "not here"

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        made = Anything(name, (), {"__module__": "torch"})
        setattr(self, name, made)
        return made


class Finder:
    """Finds torch, and packages that only training needs; each is a Torch."""

    ROOTS = ("torch", "joblib", "platformdirs", "tqdm")

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.ROOTS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Torch(spec.name)

    def exec_module(self, module):
        pass


def install() -> None:
    """From now on `import torch` gives the stub."""
    sys.meta_path.insert(0, Finder())

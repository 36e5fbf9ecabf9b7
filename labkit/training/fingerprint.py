"""A checksum of what a part of a recipe does: its code, its arguments, and the helpers and constants it uses.

The code that is loaded is read, not the file: a file that was edited and not imported again does not run. Functions and
classes are followed within the package of the part and into files that are not installed, so that an edited helper
counts, and an edited signature in the same file does not. A global counts by its content; a cache that training fills
costs one more training. labkit's own tables, caches and locks count by the statements that make them and by what those
statements use, so that a filled cache changes nothing.
"""

import dataclasses
import functools
import hashlib
import inspect
import io
import keyword
import re
import sys
import sysconfig
import tokenize
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), range, torch.dtype, torch.device, re.Pattern)
# Attributes of a class that do not say what it does: texts, the lines it is on, caches.
SKIPPED = {
    "__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__annotate_func__",
    "__firstlineno__", "__static_attributes__", "_abc_impl",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Statement:
    """A statement at the top level of a module, without comments and white space."""

    words: tuple[str, ...]

    @property
    def names(self) -> set[str]:
        return {word for word in self.words if word.isidentifier() and not keyword.iskeyword(word)}


class NoFingerprint(TypeError):
    """A value whose behaviour cannot be read: an open file, a lock, a generator."""


def fingerprint(value) -> str:
    """The same for values that do the same, in every process; `NoFingerprint` where that cannot be told."""
    reader = Reader(package_of(value))
    reader.add(value)
    return reader.digest.hexdigest()


def package_of(value) -> str:
    """The top-level package of a function, a class, a partial or a callable object."""
    value = getattr(value, "func", value)
    return top(getattr(value, "__module__", None) or type(value).__module__)


def top(module: str) -> str:
    return module.partition(".")[0]


@functools.cache
def installed(module: str) -> bool:
    """Is a module known by the version of its package: Python's own, one of site-packages, or labkit's?"""
    if module == "__main__":
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    places = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    return file is None or top(module) == "labkit" or any(Path(file).is_relative_to(place) for place in places)


class Reader:
    """Walks from a value through everything it uses, and adds it all to one checksum."""

    def __init__(self, package: str):
        self.package = package
        self.digest = hashlib.sha256()
        self.seen: dict[int, int] = {}
        self.alive: list[object] = []  # so that no id is given to a second object

    def word(self, *words) -> None:
        for word in words:
            self.digest.update(str(word).encode(errors="surrogatepass") + b"\0")

    def first_time(self, value) -> bool:
        """Note an object; one that was met before is written as a reference, so that cycles end."""
        if id(value) in self.seen:
            self.word("again", self.seen[id(value)])
            return False
        self.seen[id(value)] = len(self.seen)
        self.alive.append(value)
        return True

    def add(self, value) -> None:
        """A value, by its content."""
        kind = type(value)
        if kind in PLAIN:
            self.word(kind.__name__, repr(value))
        elif isinstance(value, types.CodeType):
            self.add_code(value)
        elif isinstance(value, types.ModuleType):
            self.word("module", value.__name__)
        elif isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, types.ModuleType | type(None)):
            self.word("builtin", value.__module__, value.__qualname__)
        elif isinstance(value, set | frozenset):
            self.word(kind.__name__, *sorted(fingerprint(each) for each in value))
        elif self.first_time(value):
            self.add_new(value)

    def add_new(self, value) -> None:
        kind = type(value)
        if isinstance(value, types.FunctionType):
            self.add_function(value)
        elif isinstance(value, type):
            self.add_class(value)
        elif isinstance(value, types.MethodType):
            self.add_all("method", (value.__func__, value.__self__))
        elif isinstance(value, functools.partial):
            self.add_all("partial", (value.func, value.args, value.keywords))
        elif isinstance(value, staticmethod | classmethod):
            self.add_all(kind.__name__, (value.__func__,))
        elif isinstance(value, functools.cached_property):  # before Python 3.12 it holds a lock
            self.add_all("cached_property", (value.func,))
        elif isinstance(value, property):
            self.add_all("property", (value.fget, value.fset, value.fdel))
        elif hasattr(value, "__wrapped__") and hasattr(value, "cache_clear"):  # functools.cache
            self.add_all("cache", (value.__wrapped__,))
        elif kind in (tuple, list):
            self.add_all(kind.__name__, value)
        elif kind in (dict, types.MappingProxyType):
            self.add_all(kind.__name__, (each for item in value.items() for each in item))
        elif isinstance(value, np.ndarray) and value.dtype != object:
            self.word("array", value.dtype, value.shape, hashlib.sha256(value.tobytes()).hexdigest())
        elif isinstance(value, torch.Tensor):
            content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            self.word("tensor", value.dtype, tuple(value.shape), hashlib.sha256(content.numpy().data).hexdigest())
        else:
            self.add_object(value)

    def add_all(self, kind: str, values) -> None:
        values = list(values)
        self.word(kind, len(values))
        for each in values:
            self.add(each)

    def add_object(self, value) -> None:
        """Its class and its state, as the object itself tells them to `copy`."""
        try:
            state = value.__reduce_ex__(4)
        except Exception as error:  # whatever its own code raises
            raise NoFingerprint(f"{type(value).__name__} has no content that can be compared") from error
        self.add(type(value))
        self.add(state if isinstance(state, str) else tuple(each for each in state))

    # --- code ---

    def add_function(self, function: types.FunctionType) -> None:
        self.word("function", function.__module__, function.__qualname__)
        if not self.follows(function.__module__):
            return
        self.add_code(function.__code__)
        self.add(function.__defaults__)
        self.add(function.__kwdefaults__)
        self.add(vars(function))
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:
                self.word("empty cell")
        self.add_names(names_in(function.__code__), function.__globals__)

    def follows(self, module: str | None) -> bool:
        """The package of the part itself, and every file that is not installed: those have no version."""
        if module is None or top(module) == "torch":
            return False
        return top(module) == self.package or not installed(module)

    def add_code(self, code: types.CodeType) -> None:
        """The instructions; neither the file nor the line, so that a function may move."""
        self.word("code", code.co_name, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        self.word(code.co_flags, code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars)
        self.add_all("constants", code.co_consts)

    def add_names(self, names: set[str], scope: dict) -> None:
        """What code with these names uses of the globals of its module."""
        for name in sorted(names):
            if name not in scope:  # a builtin, or an attribute of something
                continue
            self.word("global", name)
            value = scope[name]
            if isinstance(value, types.ModuleType) and self.follows(value.__name__):
                for each in sorted(names):  # helpers.scaled(x): what is asked of a module of the same package
                    if each in vars(value):
                        self.word(value.__name__, each)
                        self.add_global(vars(value)[each], each, value.__name__)
            else:
                self.add_global(value, name, scope.get("__name__", ""))

    def add_global(self, value, name: str, module: str) -> None:
        made_by = () if is_constant(value) or top(module) != "labkit" else statements(module).get(name, ())
        if not made_by:
            self.add(value)
        elif self.first_time(value):
            for statement in made_by:
                self.word(*statement.words)
                self.add_names(statement.names, vars(sys.modules[module]))

    def add_class(self, kind: type) -> None:
        self.word("class", kind.__module__, kind.__qualname__)
        if not self.follows(kind.__module__):
            return
        self.add_all("bases", kind.__bases__)
        for name, value in sorted(vars(kind).items()):
            if name not in SKIPPED:
                self.word(name)
                known = is_constant(value) or not name.startswith("__")
                self.add(value) if known else self.word(type(value).__name__)


CODE = (
    types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, functools.partial,
    staticmethod, classmethod, property, functools._lru_cache_wrapper,
)  # fmt: skip


def is_constant(value) -> bool:
    """Code, or a plain value that nobody can change where it stands."""
    if type(value) in (tuple, frozenset):
        return all(is_constant(each) for each in value)
    return type(value) in PLAIN or isinstance(value, CODE)


def names_in(code: types.CodeType) -> set[str]:
    """Every name that a function, or a function inside it, looks up."""
    inner = (names_in(each) for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*inner)


def statements(module: str) -> dict[str, tuple[Statement, ...]]:
    """Name -> the top-level statements of a module's file in which it occurs; empty where there is no file."""
    try:
        return _statements(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        return {}


@functools.lru_cache(maxsize=256)
def _statements(source: str) -> dict[str, tuple[Statement, ...]]:
    found: dict[str, tuple[Statement, ...]] = {}
    for statement in _top_level(source):
        if statement.words[0] not in ("def", "class", "async", "@"):
            for name in statement.names:
                found[name] = (*found.get(name, ()), statement)
    return found


def _top_level(source: str) -> Iterator[Statement]:
    """By tokens and not by `ast`: Python 3.11 raises SystemError where two threads build a tree at once, and a panel
    looks for its run in a thread while the next cell of the notebook is compiled."""
    words: list[str] = []
    depth, ended = 0, True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        depth += (token.type == tokenize.INDENT) - (token.type == tokenize.DEDENT)
        if ended and depth == 0 and words and token.string.strip():
            yield Statement(tuple(words))
            words = []
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            words += [token.string] if token.string else []
            ended = False
        ended = ended or token.type == tokenize.NEWLINE
    if words:
        yield Statement(tuple(words))

"""A failure mode as one standalone PyTorch script: the source code of its parts, collected from the package."""

import ast
import builtins
import functools
import inspect
import re
import sys
import textwrap
import types

from labkit.course.standalone import template
from labkit.failures.mode import FailureMode
from labkit.training import data, language, parts
from labkit.training.recipe import Recipe
from labkit.training.state import TrainingState

PACKAGE = __package__.split(".")[0]  # labkit, at whatever depth this file is
# A plain MNIST reader instead of ours, which verifies checksums of embedded files.
INSTEAD = {data.mnist: template.mnist, data.load: template.load}
# The loss alone: samples and their judge are half as much code as the rest.
INSTEAD |= {language.next_token_evaluate: template.next_token_evaluate}
# Simpler equivalents for a recipe without augmentation, and for one in float32.
PLAIN_BATCHES = {parts.shuffled: template.shuffled}
FLOAT32 = {TrainingState: template.Float32State}
SEVERAL_PROCESSES = {template.start: template.start_several}


def script(mode: FailureMode) -> str:
    """The source of a script that trains the sick and the cured recipe and needs only torch."""
    recipes = mode.recipes()
    sick, cured = recipes["sick"], recipes["cured"]
    gathered = Gathered(instead(sick, cured))
    for part in (*parts_of(sick).values(), *parts_of(cured).values(), template.Settings, template.main):
        gathered.add(part)
    made = f"SICK = Settings(\n{settings(sick, gathered)})\nCURED = SICK.but({changes(cured, sick, gathered)})\n"
    runs = '{"sick": SICK, "cured": CURED}'
    lines = [opening(mode), *sorted(gathered.imports), "", "", gathered.text, "", made, ""]
    return "\n".join([*lines, 'if __name__ == "__main__":', f"    main({runs})", ""])


def instead(*recipes: Recipe) -> dict:
    """Replacements in the script for pieces of the package."""
    chosen = dict(INSTEAD)
    if all(recipe.augment == "none" for recipe in recipes):
        chosen |= PLAIN_BATCHES
    if all(recipe.precision == "fp32" and recipe.loss_scale is None for recipe in recipes):
        chosen |= FLOAT32
    if any(recipe.processes > 1 for recipe in recipes):
        chosen |= SEVERAL_PROCESSES
    return chosen


def opening(mode: FailureMode) -> str:
    """The mode's card, as the script's docstring."""
    cure = next(iter(mode.cures))
    paragraphs = [f"{mode.title}.", mode.symptom, f"Why: {mode.mechanism}", f"Cure: {cure}. {mode.remedy}"]
    paragraphs += ["Needs torch, and MNIST's four .gz files in the folder that MNIST_FOLDER names. Begin at the end."]
    filled = "\n\n".join(textwrap.fill(each, 100) for each in paragraphs)
    return f'"""{filled}\n"""\n'


def parts_of(recipe: Recipe) -> dict:
    return {name: getattr(recipe, name) for name in recipe.summary() if callable(getattr(recipe, name))}


def settings(recipe: Recipe, gathered: "Gathered") -> str:
    """The entries that the gathered code reads, one per line."""
    read = {*re.findall(r"recipe\.(\w+)", gathered.text)}
    return "".join(f"    {name}={shown(recipe, name, gathered)},\n" for name in recipe.summary() if name in read)


def changes(recipe: Recipe, other: Recipe, gathered: "Gathered") -> str:
    return ", ".join(f"{name}={shown(recipe, name, gathered)}" for name in recipe.changes_from(other))


def shown(recipe: Recipe, name: str, gathered: "Gathered") -> str:
    """One entry as source; a part by the name that the script has it under."""
    value = getattr(recipe, name)
    return gathered.instead.get(value, value).__name__ if callable(value) else repr(value)


class Gathered:
    """Definitions in an order that runs: each after those it uses."""

    def __init__(self, instead: dict):
        self.instead = instead
        self.imports: set[str] = set()
        self.definitions: dict[str, str] = {}
        self.homes: dict[str, types.ModuleType] = {}

    @property
    def text(self) -> str:
        return "\n\n\n".join(self.definitions.values()) + "\n\n"

    def add(self, thing) -> None:
        """A function or class, with everything it needs."""
        thing = self.instead.get(thing, thing)
        if ours(thing):
            self.add_name(sys.modules[thing.__module__], thing.__name__)
        else:
            self.imports.add(f"from {thing.__module__} import {thing.__name__}")

    def add_name(self, module: types.ModuleType, name: str) -> None:
        """A module's definition, or the import that gives it the name."""
        if name in self.definitions:
            if self.homes[name] is not module:
                raise ValueError(f"{name} is defined in {module.__name__} and in {self.homes[name].__name__}")
            return
        node = _top_level(module)[name]
        source = ast.get_source_segment(_source(module), node, padded=False)
        if decorators := getattr(node, "decorator_list", ()):
            first = min(decorator.lineno for decorator in decorators)
            source = "\n".join(_source(module).splitlines()[first - 1 : node.end_lineno])
        source = _without_checker_types(source, module)
        node = ast.parse(source).body[0]
        self.homes[name], self.definitions[name] = module, source  # early: a definition may use itself
        replaced = self._needs(node, module)
        del self.definitions[name]
        for old, new in replaced.items():
            source = re.sub(rf"\b{re.escape(old)}\b", new, source)
        self.definitions[name] = source

    def _needs(self, node: ast.AST, module: types.ModuleType) -> dict[str, str]:
        """Add what a definition uses; returns what must be written otherwise: `models.mlp` is now `mlp`."""
        replaced, own = {}, _own_names(node)
        for each in ast.walk(node):
            if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id not in own:
                home = vars(module).get(each.value.id)
                if _is_our_module(home):
                    thing = getattr(home, each.attr)
                    replaced[f"{each.value.id}.{each.attr}"] = self._add_object(home, each.attr, thing)
            elif isinstance(each, ast.Name) and each.id in vars(module) and each.id not in own:
                thing = vars(module)[each.id]
                if not _is_our_module(thing):
                    replaced[each.id] = self._add_object(module, each.id, thing)
        return replaced

    def _add_object(self, module: types.ModuleType, name: str, thing) -> str:
        """Its name in the script."""
        if isinstance(thing, types.FunctionType | type) and thing in self.instead:
            self.add(thing)
            return self.instead[thing].__name__
        while name not in _top_level(module):
            line = _imports(module)[name]
            if line.split()[1].split(".")[0] != PACKAGE:
                self.imports.add(line)
                return name
            module, name = sys.modules[line.split()[1]], line.split()[3]
        self.add_name(module, name)
        return name


def ours(thing) -> bool:
    """Is it defined in this package?"""
    return thing.__module__.split(".")[0] == PACKAGE


def _is_our_module(thing) -> bool:
    return isinstance(thing, types.ModuleType) and thing.__name__.split(".")[0] == PACKAGE


def _without_checker_types(source: str, module: types.ModuleType) -> str:
    """The same code without annotations that only a type checker can resolve: a script has no `Recipe`."""
    lines = [line.encode() for line in source.splitlines()]  # ast counts columns in bytes
    cuts = []
    for each in ast.walk(ast.parse(source)):
        note = getattr(each, "returns", None) or getattr(each, "annotation", None)
        if note is not None and _for_checker_only(note, module):
            cuts.append((note.lineno - 1, *_cut(each, note, lines[note.lineno - 1])))
    for number, start, end, instead in sorted(cuts, reverse=True):
        lines[number] = lines[number][:start] + instead + lines[number][end:]
    return re.sub(r"\n(\s*\n){2,}", "\n\n", b"\n".join(lines).decode())


def _cut(each: ast.AST, note: ast.expr, line: bytes) -> tuple[int, int, bytes]:
    """From where to where an annotation is cut out of its line, and what is written instead."""
    if isinstance(each, ast.arg):
        default = line[note.end_col_offset :].startswith(b" = ")
        return each.col_offset + len(each.arg.encode()), note.end_col_offset + 3 * default, b"=" * default
    if isinstance(each, ast.FunctionDef):
        return line.rindex(b" ->", 0, note.col_offset), note.end_col_offset, b""
    if each.value is None:  # a declaration and nothing else
        return 0, len(line), b""
    return each.target.end_col_offset, note.end_col_offset, b""


def _for_checker_only(note: ast.expr, module: types.ModuleType) -> bool:
    names = {each.id for each in ast.walk(note) if isinstance(each, ast.Name)}
    quoted = any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in ast.walk(note))
    return quoted or not names <= {*vars(module), *vars(builtins)}


def _own_names(node: ast.AST) -> set[str]:
    """Arguments and variables of a function: they hide what the module has under the same name."""
    if not isinstance(node, ast.FunctionDef):
        return set()
    arguments = {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
    return arguments | {e.id for e in ast.walk(node) if isinstance(e, ast.Name) and isinstance(e.ctx, ast.Store)}


@functools.cache
def _source(module: types.ModuleType) -> str:
    return inspect.getsource(module)


@functools.cache
def _top_level(module: types.ModuleType) -> dict[str, ast.AST]:
    """Name -> the statement that defines it in the module."""
    found = {}
    for node in ast.parse(_source(module)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                found |= {each.id: node for each in names if isinstance(each, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
    return found


@functools.cache
def _imports(module: types.ModuleType) -> dict[str, str]:
    """Name -> the import statement that brings it into the module."""
    found = {}
    for node in ast.walk(ast.parse(_source(module))):
        if isinstance(node, ast.Import):
            for each in node.names:
                found[each.asname or each.name.split(".")[0]] = f"import {each.name}" + (
                    f" as {each.asname}" if each.asname else ""
                )
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                found[each.asname or each.name] = f"from {node.module} import {each.name}" + (
                    f" as {each.asname}" if each.asname else ""
                )
    return found

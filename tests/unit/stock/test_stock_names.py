"""stock_names.py lists all that we use of kafka-python beyond its public API, and all of it exists."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import kafka

from support.tree import ROOT

SEAM = "tolerant_client.stock.stock_names"
PUBLIC = ("admin", "errors", "metrics", "partitioner", "protocol", "serializer", "structs")
DOCUMENTED = ("kafka.net.sasl.oauth",)  # by its path, in the docstrings of kafka-python's clients
OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}
# An object with this name in our modules is of this class, or of a subclass of ours.
RECEIVERS = {
    "_connections": "KafkaConnectionManager",
    "_manager": "KafkaConnectionManager",
    "_net": "NetworkSelector",
    "_subscription": "SubscriptionState",
    "_subscriptions": "SubscriptionState",
    "manager": "KafkaConnectionManager",
    "net": "NetworkSelector",
}


@functools.cache
def our_modules() -> dict[str, ast.Module]:
    paths = [path for package in ("tolerant_client", "spark_integration") for path in (ROOT / package).rglob("*.py")]
    paths.append(ROOT / "pyspark_tolerantkafka.py")
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in sorted(names.items()) if name != SEAM}


def imports(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """(module, name, local name) for each import; no names where the module itself is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "", "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name, alias.asname or alias.name) for alias in node.names)


def is_public(module: str) -> bool:
    root, _, rest = module.partition(".")
    return root != "kafka" or not rest or rest.split(".")[0] in PUBLIC or module in DOCUMENTED


def seam() -> Any:
    return importlib.import_module(SEAM)


def users_of(name: str) -> list[str]:
    return [module for module, tree in our_modules().items() if (SEAM, name, name) in set(imports(tree))]


@functools.cache
def names_of(owner: Any) -> frozenset[str]:
    """What a class or module has, with what a class's own methods give their `self`."""
    names = set(dir(owner))
    for base in [] if isinstance(owner, ModuleType) else owner.__mro__[:-1]:
        names |= own_names(base)
    return frozenset(names)


@functools.cache
def own_names(cls: type) -> frozenset[str]:
    """What one class has beyond its bases."""
    names = set(vars(cls)) | set(vars(cls).get("__annotations__", ()))
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):  # it has no source, as named tuples
        return frozenset(names)
    return frozenset(names | given_to_self(tree))


def given_to_self(tree: ast.AST) -> set[str]:
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {node.attr for node in attributes if isinstance(node.ctx, ast.Store) and last_name(node.value) == "self"}


def defined(tree: ast.AST) -> set[str]:
    """What a file defines: attributes, methods and functions, in whatever class, and names outside of functions."""
    names = given_to_self(tree)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Module, ast.ClassDef)):
            targets = [target for child in node.body if isinstance(child, ast.Assign) for target in child.targets]
            targets += [child.target for child in node.body if isinstance(child, ast.AnnAssign)]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@functools.cache
def private_names_of_kafka_python() -> frozenset[str]:
    names: set[str] = set()
    for path in Path(kafka.__file__).parent.rglob("*.py"):
        names |= defined(ast.parse(path.read_text(encoding="utf-8")))
    return frozenset(name for name in names if is_private(name)) - OF_NAMED_TUPLES


def is_there(module: str, name: str) -> bool:
    if not is_module(module):
        return False
    return not name or hasattr(importlib.import_module(module), name) or is_module(f"{module}.{name}")


def is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is not a package
        return False


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_stock(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "kafka"


def is_of_public_class(cls: type) -> bool:
    return cls in (kafka.KafkaConsumer, kafka.KafkaProducer, kafka.KafkaAdminClient) or is_public(cls.__module__)


def accesses(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.expr, str]]:
    """(class, receiver, name) for each attribute, written with a dot or read with getattr and the like."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Attribute):
            yield inside, node.value, node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            if isinstance(name := node.args[1], ast.Constant):
                yield inside, node.args[0], str(name.value)
        yield from accesses(node, node.name if isinstance(node, ast.ClassDef) else inside)


def last_name(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def stock_owners(cls: type, name: str) -> list[type]:
    """The classes of kafka-python from which a class of ours has a name, or with which it shares one."""
    owners = [base for base in cls.__mro__ if is_stock(base) and name in own_names(base)]
    return [base for base in owners if is_private(name) or not is_of_public_class(base)]


def used_through_self(module: str, tree: ast.Module) -> Iterator[tuple[type, str]]:
    """(class of kafka-python, name): what our classes use of their bases, and what they override."""
    ours = {
        node.name: cls
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, (ast.Name, ast.Attribute)) for base in node.bases)
        and isinstance(cls := getattr(importlib.import_module(module), node.name, None), type)
        and any(map(is_stock, cls.__mro__))
    }
    for cls in ours.values():
        for name in own_names(cls):
            if not name.startswith("__") and name != "_abc_impl":  # abc adds these to every class
                yield from ((owner, name) for owner in stock_owners(cls, name)[:1])
    for inside, receiver, name in accesses(tree):
        if inside in ours and isinstance(receiver, ast.Name) and receiver.id == "self":
            yield from ((owner, name) for owner in stock_owners(ours[inside], name)[:1])


def used_of_others(tree: ast.Module) -> Iterator[tuple[Any, str]]:
    """(class of kafka-python, None if unknown; name): what is used of objects other than `self`."""
    here = defined(tree)
    ours = vars(importlib.import_module("tolerant_client.stock.manager").TolerantConnectionManager)
    for _, receiver, name in accesses(tree):
        if last_name(receiver) in RECEIVERS:
            owner = getattr(seam(), RECEIVERS[last_name(receiver)])
            if name in names_of(owner) and name not in ours:
                yield owner, name
        elif last_name(receiver) not in ("self", "cls", "super"):
            if name in private_names_of_kafka_python() and name not in here:
                yield None, name


def test_only_one_module_imports_what_is_not_kafka_pythons_public_api() -> None:
    wrong = [
        f"{module} imports {name} from {source}; let it come from {SEAM}"
        for module, tree in our_modules().items()
        for source, name, _ in imports(tree)
        if not is_public(f"kafka.{name}" if source == "kafka" and is_module(f"kafka.{name}") else source)
    ]
    assert wrong == []


def test_all_that_is_imported_is_where_kafka_python_has_it() -> None:
    moved = []
    path = ROOT / (SEAM.replace(".", "/") + ".py")
    for source, name, alias in imports(ast.parse(path.read_text(encoding="utf-8"))):
        if source.partition(".")[0] == "kafka" and not is_there(source, name):
            users = ", ".join(users_of(alias)) or "USES"
            moved.append(f"kafka-python {kafka.__version__} has no {source}.{name}: needed by {users}")
    assert moved == []


def test_all_that_we_use_is_there() -> None:
    missing = [
        f"kafka-python {kafka.__version__} has no {use.owner.__name__}.{name}: {', '.join(use.users)} ({use.why})"
        for use in seam().USES
        for name in use.names
        if name not in names_of(use.owner) and not use.is_optional
    ]
    assert missing == []


def test_who_is_said_to_use_a_name_does() -> None:
    wrong = []
    for use in seam().USES:
        for user in use.users:
            paths = [ROOT / f"{user.replace('.', '/')}.py", *(ROOT / user.replace(".", "/")).rglob("*.py")]
            sources = [path.read_text(encoding="utf-8") for path in paths if path.exists()]
            if not sources:
                wrong.append(f"{user}: there is no such module")
            for name in use.names:
                word = "await" if name == "__await__" else name
                if sources and name != "__call__" and not any(re.search(rf"\b{word}\b", text) for text in sources):
                    wrong.append(f"{user} does not use {use.owner.__name__}.{name}")
    assert wrong == []


def is_listed(module: str, owner: Any, name: str) -> bool:
    return any(
        name in use.names
        and (owner is None or (isinstance(use.owner, type) and issubclass(use.owner, owner)))
        and any(module == user or module.startswith(f"{user}.") for user in use.users)
        for use in seam().USES
    )


def test_all_that_we_use_is_listed() -> None:
    unlisted = set()
    for module, tree in our_modules().items():
        found = list(used_of_others(tree))
        if module.startswith("tolerant_client.") and not module.endswith(("__main__", ".plugin")):
            found += used_through_self(module, tree)
        for owner, name in found:
            if not is_listed(module, owner, name):
                unlisted.add(f"{module} uses {name} of {owner.__name__ if owner else 'some class of kafka-python'}")
    assert sorted(unlisted) == []

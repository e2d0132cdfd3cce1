"""Stands in for triton on a CPU: kernels can be defined, as some hundred modules do on import, and never run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__version__ = "3.0.0"


class Inert:
    """Any class of triton: it takes whatever it is given and can be inherited from."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.args, self.kwargs = args, kwargs

    def __class_getitem__(cls, item: object) -> type[Inert]:
        return cls


class constexpr(Inert):
    """A compile-time constant, also used as an annotation."""

    def __init__(self, value: object = None) -> None:
        super().__init__(value)
        self.value = value


class OutOfResources(Exception):
    """Caught by torch's compiler."""


class PTXASError(Exception):
    """Caught by torch's compiler."""


def cdiv(x: int, y: int) -> int:
    """x / y, rounded up."""
    return -(x // -y)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def triton_key() -> str:
    """What torch's compiler adds to the keys of its cache."""
    return "stand-in"


class InertModule(ModuleType):
    """A module, or a function, of which nothing is known: attributes are made when asked for.

    Names in capitals are classes, others modules again; a call is a decorator, with or without arguments.
    """

    def __getattr__(self, name: str) -> Any:
        return _make(self.__name__, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As a decorator, with or without arguments: the function stays as it is."""
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]
        return lambda function: function

    def __bool__(self) -> bool:
        return False


class _Finder(MetaPathFinder, Loader):
    """Finds every submodule of this package."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.startswith(f"{__name__}.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return InertModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(_KNOWN.get(module.__name__, {}))


_KNOWN: dict[str, dict[str, object]] = {
    "triton.language": {"constexpr": constexpr},
    "triton.compiler.compiler": {"triton_key": triton_key},
    "triton.runtime.cache": {"triton_key": triton_key},
    "triton.runtime.autotuner": {"OutOfResources": OutOfResources, "PTXASError": PTXASError},
}


def _make(module: str, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    if name[0].isupper():
        made: Any = type(name, (Inert,), {"__module__": module})
        setattr(sys.modules[module], name, made)
        return made
    return importlib.import_module(f"{module}.{name}")


def __getattr__(name: str) -> Any:
    return _make(__name__, name)


sys.meta_path.insert(0, _Finder())

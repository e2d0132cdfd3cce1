"""The plugin's entry point on a CPU lane: it imports the package that this folder lies in, and nothing beside it.

The launcher's own environment may hold other versions of what the lane's has, so it must not be on the lane's path.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def load() -> None:
    """Called by SGLang in each of its processes, before arguments are parsed."""
    _make_importable(Path(__file__).parents[2])
    from outrider.sglang_plugin.entry import load as load_plugin

    load_plugin()


def _make_importable(package: Path) -> None:
    """Load `package` under its own name, unless it is there already."""
    if package.name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(
        package.name, package / "__init__.py", submodule_search_locations=[str(package)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{package} is not a package")
    module = importlib.util.module_from_spec(spec)
    sys.modules[package.name] = module
    spec.loader.exec_module(module)

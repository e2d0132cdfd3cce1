"""The shape of the source: who imports whom, what loads alone, how long things are, and that the README is true."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from outrider import errors

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "backend" / "outrider"
FILES = sorted(SOURCE.rglob("*.py"))
#: And the code that is not installed.
ALL_FILES = [*FILES, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "docs").glob("*.py"))]

#: Leaves that every package may use: a version string, SGLang's names of drafters, the cutting of event streams, the
#: cost table, texts' suffixes, plots, pauses that servers ask for.
LEAVES = {"version", "algorithms", "sse", "cost", "suffixes", "plots", "retry_after"}
#: Package -> packages of ours that it may import; `policy.plan` is the part of the policy that others may know.
ALLOWED = {
    "version": set(),
    "algorithms": set(),
    "sse": set(),
    "cost": set(),
    "suffixes": set(),
    "plots": set(),
    "retry_after": set(),
    "core": set(),
    "errors": set(),
    "config": {"errors", "core", "profiles"},
    "profiles": {"core"},
    "policy": {"core", "errors"},
    "telemetry": {"core"},
    "speculation": set(),
    "engine": {"speculation", "policy.plan", "core", "errors", "telemetry", "config"},
    "training": {"engine", "speculation", "policy.plan", "core", "errors"},
    "runtimes": {"policy.plan", "core", "errors", "telemetry", "config", "profiles"},
    "dispatch": {"policy", "runtimes", "core", "errors", "telemetry", "config"},
    "runs": {"core", "errors", "config"},
    # The gateway relays a lane's bytes, so it knows how lanes write them; it opens no lane itself.
    "gateway": {
        "dispatch",
        "runs",
        "core",
        "errors",
        "telemetry",
        "config",
        *(f"runtimes.{name}" for name in ("protocol", "splice", "client", "pool", "dialects")),
    },
    "sdk": {"core", "errors"},
    "workloads": {"sdk", "core", "errors", "policy.plan"},
    "sglang_plugin": {"speculation"},
}
ANYTHING = {"app", "cli", "workers", "__main__", "__init__"}
#: Foreign package -> where it may be imported at all.
FENCES = {
    "torch": {"engine", "speculation", "training", "cli", "sglang_plugin"},
    "resvg_py": {"plots/png"},
    "sglang": {"sglang_plugin"},
    "sqlalchemy": {"runs/store"},
    "yaml": {"config", "policy/loader", "workloads"},
    "aiohttp.web": {"gateway", "engine/server", "app", "cli/bench/servers"},
    "transformers": {"cli/bench/hugging_face"},
    "llama_cpp": {"cli/bench/llama"},
    "plotext": {"cli/profile"},
}
#: Classes of SGLang's are inherited from here; the other modules of the plugin load without it.
NEEDS_SGLANG = {"sglang_plugin/attention"}
#: Broad excepts, each with its reason where it stands.
BROAD = {"engine/drafters/guarded.py", "engine/loop.py", "gateway/boundary.py"}


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").as_posix()


def package_of(path: Path) -> str:
    return name_of(path).split("/")[0]


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Dotted names of everything imported, wherever in the file it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_follow_one_direction(path: Path) -> None:
    """A module imports only what the table of packages allows it."""
    package = package_of(path)
    if package in ANYTHING:
        return
    allowed = ALLOWED[package] | LEAVES | {package}
    for name in imports_of(parsed(path)):
        parts = name.split(".")
        if parts[0] != "outrider" or len(parts) == 1:
            continue
        target = ".".join(parts[1:3])
        assert parts[1] in allowed or target in allowed, f"{name_of(path)} may not import {name}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_foreign_libraries_stay_behind_their_fences(path: Path) -> None:
    """Tensors, YAML and the web server are each known in few places."""
    for name in imports_of(parsed(path)):
        for library, places in FENCES.items():
            if name == library or name.startswith(library + "."):
                here = name_of(path)
                assert any(here == p or here.startswith(p + "/") for p in places), f"{here} may not import {name}"


def test_every_module_loads_alone() -> None:
    """No module needs another to have been imported before it, and importing prints nothing."""
    files = [name_of(f) for f in FILES if name_of(f) not in NEEDS_SGLANG]
    names = [f"outrider.{name.replace('/', '.')}".removesuffix(".__init__") for name in files]
    forget = "[sys.modules.pop(m) for m in list(sys.modules) if m.startswith('outrider')]"
    code = f"import importlib, sys\nfor name in {names!r}:\n    {forget}\n    importlib.import_module(name)\n"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("command", [["-c", "import outrider"], ["-m", "outrider", "--help"]], ids=["import", "help"])
def test_the_sdk_and_the_help_load_no_tensors(command: list[str]) -> None:
    """What is started often stays light: none of the heavy libraries is imported."""
    done = subprocess.run([sys.executable, "-X", "importtime", *command], capture_output=True, text=True, check=True)
    loaded = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert not loaded & {"torch", "transformers", "numpy", "gguf", "tokenizers", "safetensors"}


def functions(files: Iterable[Path]) -> Iterator[tuple[str, int]]:
    for path in files:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                yield f"{path.relative_to(ROOT)}:{node.lineno}:{node.name}", node.end_lineno - node.lineno + 1


def test_files_and_functions_fit() -> None:
    """No file over 300 lines, no function over 60, and half of the package's under 10."""
    assert [path for path in ALL_FILES if len(path.read_text(encoding="utf-8").splitlines()) > 300] == []
    assert [name for name, size in functions(ALL_FILES) if size > 60] == []
    sizes = sorted(size for _, size in functions(FILES))
    assert sizes[len(sizes) // 2] < 10


def code_lines(path: Path) -> list[tuple[int, str]]:
    """Numbers and text, but for blank lines, comments, docstrings, imports and signatures, which interfaces share."""
    left_out: set[int] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            left_out.update(range(node.lineno, node.body[0].lineno))
        elif isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            left_out.update(range(node.lineno, (node.end_lineno or 0) + 1))
    lines = [(number, line.strip()) for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)]
    return [(number, line) for number, line in lines if line and line[0] != "#" and number not in left_out]


def test_nothing_is_written_twice() -> None:
    """No six lines of code stand in two places, those of the tests included."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in ALL_FILES:
        lines = code_lines(path)
        for i in range(len(lines) - 5):
            text = "\n".join(line for _, line in lines[i : i + 6])
            places[text].append(f"{path.relative_to(ROOT)}:{lines[i][0]}")
    assert [where for where in places.values() if len(where) > 1] == []


def test_broad_excepts_are_few_and_known() -> None:
    """Catching everything is allowed at three boundaries only."""
    found = set()
    for path in FILES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ExceptHandler):
                caught = "" if node.type is None else ast.unparse(node.type)
                if caught in ("", "Exception", "BaseException"):
                    found.add(path.relative_to(SOURCE).as_posix())
    assert found == BROAD


def test_the_error_tree_is_drawn_as_it_is() -> None:
    """The picture in the docstring shows every class, under its base, with its status and code."""
    text = (errors.__doc__ or "").replace("│", " ").replace("├──", "   ").replace("└──", "   ")
    drawn: dict[str, tuple[str | None, str]] = {}
    stack: list[tuple[int, str]] = []
    for line in text.splitlines():
        match = re.match(r"^( *)([A-Z]\w+)(?:\s+(.*))?$", line)
        if match and hasattr(errors, match[2]):
            depth = len(match[1])
            stack = [entry for entry in stack if entry[0] < depth]
            drawn[match[2]] = (stack[-1][1] if stack else None, match[3] or "")
            stack.append((depth, match[2]))
    classes = {k: v for k, v in vars(errors).items() if isinstance(v, type) and issubclass(v, errors.OutriderError)}
    assert set(drawn) == set(classes) - {"APIError"}
    for name, (parent, note) in drawn.items():
        assert parent is None or issubclass(classes[name], classes[parent])
        if re.match(r"\d{3} ", note):
            status, code = note.split()
            assert (str(classes[name].status), classes[name].code) == (status, code)


def test_the_readme_points_at_things_that_exist() -> None:
    """Every `path:name` in the README resolves to a definition in that file, every test and verb to a real one."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pointers = re.findall(r"`(backend/[\w/]+\.py):([\w.]+)`", readme)
    assert len(pointers) >= 9
    for file, name in pointers:
        scope: list[ast.stmt] = parsed(ROOT / file).body
        for part in name.split("."):
            named = [n for n in scope if getattr(n, "name", None) == part]
            assert named, f"{file} does not define {name}"
            scope = getattr(named[0], "body", [])
    for file, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", readme):
        assert (ROOT / file).is_file(), file
        assert not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{name}"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for verb in re.findall(r"\bmake ([a-z]+(?:-[a-z]+)*)\b(?=[` ]|$)", readme, re.MULTILINE):
        assert re.search(rf"^{verb}:", makefile, re.MULTILINE), verb
    assert len(readme.splitlines()) <= 150


def test_the_picture_of_the_packages_is_true() -> None:
    """Each arrow of the architecture page is an import, and no import between those packages lacks its arrow."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = set(re.findall(r"^  (\w+) --> (\w+)$", page, re.MULTILINE))
    left_out = LEAVES | {"core", "errors", "config", "profiles", "telemetry", "cli", "__init__", "__main__"}
    packages = {package_of(path) for path in FILES} - left_out
    imported = {
        (package_of(path), name.split(".")[1])
        for path in FILES
        for name in imports_of(parsed(path))
        if name.startswith("outrider.") and package_of(path) in packages
    }
    assert drawn == {(one, other) for one, other in imported if other in packages and one != other}
    assert packages == set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) | {"app"}

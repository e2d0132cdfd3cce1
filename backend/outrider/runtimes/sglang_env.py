"""The environment of SGLang lanes on a CPU: built once from a lock, in the user's cache under the lock's hash."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from outrider.config import cache_dir
from outrider.errors import SetupError

#: Every package that is installed; pip resolves nothing, since SGLang's own pins ask for CUDA builds.
LOCK = Path(__file__).with_name("sglang-cpu.lock")
#: Put on a CPU lane's path: what stands in for CUDA-only packages, and the entry point of our plugin.
STANDINS = Path(__file__).parents[1] / "sglang_plugin" / "standins"
#: The attention backend that our plugin registers.
ATTENTION_BACKEND = "torch_tree"
#: Written last; a folder without it is one whose build was cut off.
_COMPLETE = ".complete"

Progress = Callable[[str, float], None]


def environment(lock: Path = LOCK) -> Path:
    """Folder of the environment, whether it is there yet or not."""
    return cache_dir() / f"sglang-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"


def is_ready(lock: Path = LOCK) -> bool:
    """Whether the environment of that lock was built to its end."""
    return (environment(lock) / _COMPLETE).is_file()


def python(lock: Path = LOCK) -> Path:
    """The interpreter that starts a lane: `PYTHON -m sglang.launch_server ...`. SetupError when nothing is built."""
    if not is_ready(lock):
        raise SetupError("the environment of SGLang lanes is not there; run: outrider lanes env")
    return environment(lock) / "bin" / "python"


def cpu_variables(inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of a lane on a CPU; `inherited` is the launcher's own environment."""
    path = [str(STANDINS), inherited.get("PYTHONPATH", "")]
    return {
        **{name: value for name, value in inherited.items() if name != "PYTHONDONTWRITEBYTECODE"},
        "SGLANG_USE_CPU_ENGINE": "1",
        # Compiling one small function of tree drafting takes ten seconds and more and needs a C++ compiler.
        "TORCHDYNAMO_DISABLE": "1",
        # The default draft sampler is a Triton kernel.
        "SGLANG_OPT_USE_GUMBEL_SAMPLE": "0",
        # Idle threads of several servers would spin against each other.
        "GOMP_SPINCOUNT": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        # The n-gram corpus is compiled with `ninja` at the first start.
        "PATH": os.pathsep.join(filter(None, [str(environment() / "bin"), inherited.get("PATH", "")])),
    }


def ensure(progress: Progress = lambda what, fraction: None, lock: Path = LOCK) -> Path:
    """Build the environment if it is not there, however many ask at once. SetupError says in one line what failed."""
    folder = environment(lock)
    if is_ready(lock):
        return folder
    with _only_builder(folder):
        if not is_ready(lock):
            _build(folder, lock, progress)
    return folder


@contextmanager
def _only_builder(folder: Path) -> Iterator[None]:
    """A lock that ends with its process, so that a killed builder blocks nobody."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise SetupError(f"{folder}: cannot be written: {error.strerror}") from error


def _build(folder: Path, lock: Path, progress: Progress) -> None:
    """In place, as scripts hold the path of their interpreter; what an earlier try left is removed first."""
    if sys.version_info[:2] != (3, 11):
        found = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise SetupError(f"SGLang lanes on a CPU are locked for Python 3.11; this is Python {found}")
    shutil.rmtree(folder, ignore_errors=True)
    interpreter = str(folder / "bin" / "python")
    progress("making an environment", 0.0)
    _run([sys.executable, "-m", "venv", str(folder)])
    progress("installing SGLang", 0.05)
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile"]
    _run([interpreter, *install, "--requirement", str(lock)])
    progress("compiling to byte-code", 0.5)
    # Without it each process of a lane compiles all that it imports, at every start. Some files are templates.
    site = next((folder / "lib").glob("python3*/site-packages"))
    _run([interpreter, "-m", "compileall", "-q", "-j", "2", str(site)], is_checked=False)
    (folder / _COMPLETE).touch()
    progress("done", 1.0)


def _run(command: list[str], *, is_checked: bool = True) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if is_checked and done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["it gave no reason"]
        raise SetupError(f"{' '.join(command[1:4])} failed: {lines[-1].strip()}")

"""The public names: what they are, and how little importing them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import outrider


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_every_public_name_exists_and_is_the_one_of_its_module() -> None:
    """`__all__`, `dir` and the real namespace agree."""
    assert len(set(outrider.__all__)) == len(outrider.__all__)
    for name in outrider.__all__:
        assert getattr(outrider, name) is not None
        assert name in dir(outrider)
    namespace: dict[str, object] = {}
    exec("from outrider import *", namespace)
    assert set(outrider.__all__) == namespace.keys() - {"__builtins__"}
    assert outrider.AsyncClient.__module__ == "outrider.sdk.client"


def test_every_error_that_the_sdk_raises_is_public() -> None:
    """Callers can catch each class by a name of the package."""
    from outrider import errors

    raised = {name for name, kind in vars(errors).items() if isinstance(kind, type) and name != "Mapping"}
    setup = {"SetupError", "ConfigError", "PolicyError", "ModelError"}
    assert raised - setup <= set(outrider.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """The lazy namespace fails like any other."""
    with pytest.raises(AttributeError, match="no attribute 'Klient'"):
        _ = outrider.Klient


def test_importing_is_cheap() -> None:
    """The package alone loads neither an HTTP client nor pydantic, and little else."""
    loaded = modules_after("import outrider")
    assert len(loaded - modules_after("")) < 60
    assert not loaded & {"torch", "yaml", "aiohttp", "pydantic", "outrider.sdk"}


def test_the_client_needs_no_tensor_library_and_no_yaml() -> None:
    """What a user of the SDK loads is an HTTP client and pydantic."""
    loaded = modules_after("from outrider import *")
    assert "outrider.sdk.client" in loaded
    assert not loaded & {"torch", "numpy", "yaml", "aiohttp.web", "prometheus_client", "outrider.gateway"}

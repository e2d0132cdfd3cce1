"""Keys as the configuration finds them: in the file, in a file of their own, in the environment."""

from __future__ import annotations

from hashlib import sha256

import pytest

from outrider.config import AuthSection, KeySection, load_config, load_keys
from outrider.errors import ConfigError


def digest(secret):
    return sha256(secret.encode()).hexdigest()


def test_keys_come_from_all_three_places(tmp_path, monkeypatch):
    """Those of the environment are hashed at once; the administrator's is one of its own."""
    file = tmp_path / "keys.yaml"
    file.write_text(f"- {{name: filed, sha256: {digest('b')}, max_concurrent: 2}}\n")
    monkeypatch.setenv("OUTRIDER_API_KEY", "c")
    monkeypatch.setenv("OUTRIDER_ADMIN_KEY", "d")
    keys = load_keys(AuthSection(keys=(KeySection(name="inline", sha256=digest("a")),), keys_file=file))
    assert [key.name for key in keys] == ["inline", "filed", "environment", "admin"]
    assert [key.sha256 for key in keys] == [digest(secret) for secret in "abcd"]
    assert [key.is_admin for key in keys] == [False, False, False, True]


def test_two_keys_of_one_name_are_refused(monkeypatch):
    """Limits and logs go by the name."""
    monkeypatch.setenv("OUTRIDER_ADMIN_KEY", "d")
    with pytest.raises(ConfigError, match="same name"):
        load_keys(AuthSection(keys=(KeySection(name="admin", sha256=digest("a")),)))


@pytest.mark.parametrize(
    "text", ["", "- {name: a, key: hunter2}", "- hunter2", "- {name: a, sha256: hunter2}", "- hunter2 \udcff"]
)
def test_a_wrong_key_file_is_named_and_its_values_are_not_shown(tmp_path, text):
    """What stands in the wrong place may be the secret."""
    file = tmp_path / "keys.yaml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError) as caught:
        load_keys(AuthSection(keys_file=file))
    assert str(file) in caught.value.message and "hunter2" not in caught.value.message


def test_a_wrong_key_in_the_configuration_is_not_shown_either(tmp_path):
    """While other sections show what was found."""
    file = tmp_path / "config.yaml"
    file.write_text("auth: {keys: [{name: a, secret: hunter2}]}\n")
    with pytest.raises(ConfigError, match=r"auth\.keys\.0") as caught:
        load_config(file)
    assert "hunter2" not in caught.value.message
    file.write_text("server: {port: hello}\n")
    with pytest.raises(ConfigError, match=r"server\.port: .*found 'hello'"):
        load_config(file)

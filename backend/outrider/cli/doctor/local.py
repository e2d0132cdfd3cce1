"""Checks of this machine and of the files that the configuration names; asks no lane."""

from __future__ import annotations

import errno
import ipaddress
import resource
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

from outrider.cli.doctor.check import Check
from outrider.config import Config, ServerSection, cache_dir, inherited_environment, load_keys, policy_folders
from outrider.errors import ConfigError, PolicyError

#: Files that the process holds besides its connections.
_OTHER_FILES = 64
_LITTLE_BYTES = 1 << 30
_NO_BYTES = 100 << 20


def checks(config: Config) -> Iterator[Check]:
    """What can be known of the configuration without asking any server."""
    yield _keys(config)
    yield _policies(config)
    yield _port(config.server)
    if config.server.tls_certificate is not None:
        yield _certificate(config.server)
    yield _files(config)
    yield from _disk(config)


def _keys(config: Config) -> Check:
    try:
        keys = load_keys(config.auth)
    except ConfigError as error:
        return Check("keys", "fail", error.message, "correct the key; its digest is the hexadecimal SHA-256")
    if not keys:
        if _is_local(config.server.host):
            return Check("keys", "ok", "none: everybody on this machine may ask, nobody is an administrator")
        found = f"none, and {config.server.host} can be reached from elsewhere"
        return Check("keys", "warn", found, "set $OUTRIDER_API_KEY, or auth.keys in the configuration")
    if not any(key.is_admin for key in keys):
        return Check("keys", "warn", f"{len(keys)}, none of an administrator",
                     "set $OUTRIDER_ADMIN_KEY to use the routes under /outrider/")  # fmt: skip
    return Check("keys", "ok", f"{len(keys)}, with an administrator's")


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _policies(config: Config) -> Check:
    from outrider.policy.loader import Source, load_policies

    folders = policy_folders(config.policy.directories)
    try:
        found = load_policies(Source(folders, config.policy.default, env=inherited_environment()))
    except PolicyError as error:
        return Check("policies", "fail", error.message, "correct the file at that line")
    return Check("policies", "ok", f"{len(found.workloads)} workloads in {', '.join(map(str, folders))}")


def _port(server: ServerSection) -> Check:
    """A port that is taken may be taken by the gateway that is looked at."""
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    where = f"{server.host}:{server.port}"
    try:
        with socket.socket(family, socket.SOCK_STREAM) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((server.host, server.port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return Check("port", "warn", f"{where} is in use", "nothing if the gateway runs; else choose server.port")
        return Check("port", "fail", f"{where}: {error.strerror}", "choose another server.host or server.port")
    return Check("port", "ok", f"{where} is free")


def _certificate(server: ServerSection) -> Check:
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(str(server.tls_certificate), server.tls_key)
    except (OSError, ssl.SSLError) as error:
        return Check("tls", "fail", f"{server.tls_certificate}: {error}", "name a PEM chain and its private key")
    return Check("tls", "ok", str(server.tls_certificate))


def _files(config: Config) -> Check:
    """Of one model: a connection of a client and one of a lane for each request that runs, one for each that waits.

    Held against the hard limit, since `outrider serve` raises its own to it.
    """
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * config.admission.max_in_flight + config.admission.max_queued + _OTHER_FILES
    if allowed != resource.RLIM_INFINITY and allowed < needed:
        remedy = f"let whoever starts it have a hard limit of {needed} open files"
        return Check(
            "open files", "warn", f"{allowed} allowed, {needed} needed at one model's limits of admission", remedy
        )
    return Check("open files", "ok", f"{allowed} allowed, {needed} needed at most for one model")


def _disk(config: Config) -> Iterator[Check]:
    """Where models, logs, what is learnt and runs are written."""
    folders = {"cache": cache_dir()}
    if config.policy.learning is not None:
        folders["learning"] = config.policy.learning.parent
    for name, folder in folders.items():
        there = _existing(folder)
        try:
            free = shutil.disk_usage(there).free
        except OSError as error:
            yield Check(f"disk {name}", "fail", f"{there}: {error.strerror}", "make the folder readable")
            continue
        found = f"{free / (1 << 30):.1f} GiB free in {there}"
        if free < _NO_BYTES:
            yield Check(f"disk {name}", "fail", found, "make room")
        elif free < _LITTLE_BYTES:
            yield Check(f"disk {name}", "warn", found, "make room: logs and stores grow")
        else:
            yield Check(f"disk {name}", "ok", found)


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder

"""Outrider: decides, for every request, how to speculate. The public names of the SDK; nothing heavy."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from outrider.version import __version__

if TYPE_CHECKING:
    from outrider.core import Hints, Observed, Report, WirePlan
    from outrider.errors import (
        APIError,
        BodyTooLarge,
        ConnectionFailed,
        ConnectionTimeout,
        ContextLengthExceeded,
        InternalError,
        InvalidRequest,
        LaneFailed,
        LaneUnavailable,
        MethodNotAllowed,
        ModelNotFound,
        OutriderError,
        QueueFull,
        QueueTimeout,
        Rejected,
        RequestError,
        RouteNotFound,
        ServiceError,
        UnsupportedMediaType,
    )
    from outrider.sdk.client import AsyncClient
    from outrider.sdk.results import ChatResult, Finished, Model, OtherDelta, StreamEvent, TextDelta, Usage
    from outrider.sdk.stream import ChatStream, StreamState

__all__ = [
    "APIError",
    "AsyncClient",
    "BodyTooLarge",
    "ChatResult",
    "ChatStream",
    "ConnectionFailed",
    "ConnectionTimeout",
    "ContextLengthExceeded",
    "DeadlineExceeded",
    "Finished",
    "Forbidden",
    "Hints",
    "InternalError",
    "InvalidRequest",
    "LaneFailed",
    "LaneUnavailable",
    "MethodNotAllowed",
    "Model",
    "ModelNotFound",
    "Observed",
    "OtherDelta",
    "OutriderError",
    "QueueFull",
    "QueueTimeout",
    "RateLimited",
    "Rejected",
    "Report",
    "RequestError",
    "RequestTimeout",
    "RouteNotFound",
    "ServiceError",
    "StreamEvent",
    "StreamState",
    "TextDelta",
    "Unauthorized",
    "UnsupportedMediaType",
    "Usage",
    "WirePlan",
    "__version__",
]

# Names are loaded at first use: the HTTP client alone takes longer than the start of the command line may.
_HOMES = ("outrider.errors", "outrider.core", "outrider.sdk.results", "outrider.sdk.stream", "outrider.sdk.client")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(home)
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

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
        DeadlineExceeded,
        Forbidden,
        GatewayStopped,
        InternalError,
        InvalidRequest,
        LaneFailed,
        LaneUnavailable,
        MethodNotAllowed,
        ModelNotFound,
        OutriderError,
        QueueFull,
        QueueTimeout,
        RateLimited,
        Rejected,
        ReloadRefused,
        RequestError,
        RequestTimeout,
        RouteNotFound,
        RunNotFound,
        ServiceError,
        StoreUnavailable,
        TurnLimitReached,
        Unauthorized,
        UnsupportedMediaType,
    )
    from outrider.sdk.agent import Agent
    from outrider.sdk.blocking import BlockingResponses, BlockingRuns, Client
    from outrider.sdk.chat_stream import ChatStream
    from outrider.sdk.client import AsyncClient
    from outrider.sdk.options import CallOptions, ClientOptions, ConnectionLimits, Timeouts
    from outrider.sdk.phase import Phase, Situation, guess_phase
    from outrider.sdk.request import CallFields, ChatFields, HintFields, ResponseFields
    from outrider.sdk.responses import Responses, ResponseStream
    from outrider.sdk.results import (
        ChatResult,
        Finished,
        Head,
        OtherDelta,
        RawResponse,
        Response,
        StreamEvent,
        TextDelta,
    )
    from outrider.sdk.runs import Runs
    from outrider.sdk.session import Session
    from outrider.sdk.stream import StreamState
    from outrider.sdk.tool import Tool, ToolAnswer
    from outrider.sdk.turn import AgentEvent, AgentResult, Turn
    from outrider.sdk.waiting import BlockingStream
    from outrider.sdk.wire import (
        FunctionCall,
        InputItem,
        Message,
        Model,
        OutputItem,
        ResponseEvent,
        ResponseUsage,
        Run,
        ToolCall,
        Usage,
    )

__all__ = [
    "APIError",
    "Agent",
    "AgentEvent",
    "AgentResult",
    "AsyncClient",
    "BlockingResponses",
    "BlockingRuns",
    "BlockingStream",
    "BodyTooLarge",
    "CallFields",
    "CallOptions",
    "ChatFields",
    "ChatResult",
    "ChatStream",
    "Client",
    "ClientOptions",
    "ConnectionFailed",
    "ConnectionLimits",
    "ConnectionTimeout",
    "ContextLengthExceeded",
    "DeadlineExceeded",
    "Finished",
    "Forbidden",
    "FunctionCall",
    "GatewayStopped",
    "Head",
    "HintFields",
    "Hints",
    "InputItem",
    "InternalError",
    "InvalidRequest",
    "LaneFailed",
    "LaneUnavailable",
    "Message",
    "MethodNotAllowed",
    "Model",
    "ModelNotFound",
    "Observed",
    "OtherDelta",
    "OutputItem",
    "OutriderError",
    "Phase",
    "QueueFull",
    "QueueTimeout",
    "RateLimited",
    "RawResponse",
    "Rejected",
    "ReloadRefused",
    "Report",
    "RequestError",
    "RequestTimeout",
    "Response",
    "ResponseEvent",
    "ResponseFields",
    "ResponseStream",
    "ResponseUsage",
    "Responses",
    "RouteNotFound",
    "Run",
    "RunNotFound",
    "Runs",
    "ServiceError",
    "Session",
    "Situation",
    "StoreUnavailable",
    "StreamEvent",
    "StreamState",
    "TextDelta",
    "Timeouts",
    "Tool",
    "ToolAnswer",
    "ToolCall",
    "Turn",
    "TurnLimitReached",
    "Unauthorized",
    "UnsupportedMediaType",
    "Usage",
    "WirePlan",
    "__version__",
    "guess_phase",
]

# Names are loaded at first use: the HTTP client alone takes longer than the start of the command line may.
_HOMES = (
    "outrider.errors",
    "outrider.core",
    *(
        f"outrider.sdk.{name}"
        for name in (
            "wire", "results", "options", "stream", "chat_stream", "client", "request", "responses", "runs",
            "waiting", "blocking", "phase", "session", "tool", "turn", "agent",
        )
    ),
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(home)
            if name in vars(module):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

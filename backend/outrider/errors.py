"""The one exception tree. Wire code, HTTP status and retry flag sit in the class.

OutriderError
├── RequestError                 the caller must change the request
│   ├── InvalidRequest           400 invalid_request
│   ├── ContextLengthExceeded    400 context_length_exceeded
│   ├── Unauthorized             401 invalid_api_key
│   ├── Forbidden                403 forbidden
│   ├── ModelNotFound            404 model_not_found
│   ├── RouteNotFound            404 route_not_found
│   ├── RunNotFound              404 run_not_found
│   ├── MethodNotAllowed         405 method_not_allowed
│   ├── BodyTooLarge             413 body_too_large
│   ├── UnsupportedMediaType     415 unsupported_media_type
│   ├── ReloadRefused            422 reload_refused
│   └── Rejected                 any other 4xx of a lane
├── ServiceError                 the caller may try again
│   ├── QueueFull                503 queue_full
│   ├── QueueTimeout             408 queue_timeout
│   ├── RequestTimeout           408 request_timeout
│   ├── RateLimited              429 rate_limit_exceeded
│   ├── DeadlineExceeded         504 deadline_exceeded
│   ├── LaneUnavailable          503 lane_unavailable
│   ├── StoreUnavailable         503 store_unavailable
│   ├── GatewayStopped           503 gateway_stopped
│   ├── LaneFailed               502 lane_failed
│   └── InternalError            500 internal_error
├── ConnectionFailed             the SDK could not reach the server
│   └── ConnectionTimeout        the SDK waited too long
├── TurnLimitReached             an agent had no answer after its last turn
└── SetupError                   the operator must change something; one line, no traceback
    ├── ConfigError              configuration file or environment
    ├── PolicyError              policy file: file, line, column, expected
    └── ModelError               model files, checksum, architecture, disk
"""

from __future__ import annotations

from collections.abc import Mapping


class OutriderError(Exception):
    """Base of all our errors; `message` is one clear sentence."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class APIError(OutriderError):
    """An error that has a place on the wire, in OpenAI's shape."""

    status: int = 500
    code: str | None = "internal_error"
    error_type: str = "server_error"
    is_retryable: bool = False

    def __init_subclass__(
        cls,
        *,
        status: int | None = None,
        code: str | None = None,
        error_type: str | None = None,
        is_retryable: bool | None = None,
    ) -> None:
        """What a class does not say is its base's."""
        super().__init_subclass__()
        said = {"status": status, "code": code, "error_type": error_type, "is_retryable": is_retryable}
        for name, value in said.items():
            if value is not None:
                setattr(cls, name, value)

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        request_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.param, self.request_id, self.retry_after_s = param, request_id, retry_after_s

    def to_wire(self) -> dict[str, dict[str, str | None]]:
        """The body `{"error": {message, type, param, code}}`; `param` and `code` are null when unknown."""
        fields = {"message": self.message, "type": self.error_type, "param": self.param, "code": self.code}
        return {"error": fields}


class RequestError(APIError, status=400, code="invalid_request", error_type="invalid_request_error"):
    """The caller must change the request."""


class InvalidRequest(RequestError):
    """A field is malformed, of the wrong type, out of range or not honoured by anything."""


class ContextLengthExceeded(RequestError, code="context_length_exceeded"):
    """Prompt plus requested tokens do not fit the model's context."""


class Unauthorized(RequestError, status=401, code="invalid_api_key", error_type="authentication_error"):
    """No API key, or one that is not known."""


class Forbidden(RequestError, status=403, code="forbidden", error_type="permission_error"):
    """The key is known and may not do this."""


class ModelNotFound(RequestError, status=404, code="model_not_found"):
    """No lane serves the named model."""


class RouteNotFound(RequestError, status=404, code="route_not_found"):
    """No such path."""


class RunNotFound(RequestError, status=404, code="run_not_found"):
    """No such run or response, or it has expired, or it is another tenant's."""


class MethodNotAllowed(RequestError, status=405, code="method_not_allowed"):
    """The path exists, the method does not."""


class BodyTooLarge(RequestError, status=413, code="body_too_large"):
    """The body is over the configured limit."""


class UnsupportedMediaType(RequestError, status=415, code="unsupported_media_type"):
    """The body is not `application/json`."""


class ReloadRefused(RequestError, status=422, code="reload_refused"):
    """A policy or key file is wrong; the last good ones stay in force."""


class Rejected(RequestError):
    """A 4xx that a lane gave and for which we have no class of our own; keeps the lane's status and code."""

    def __init__(self, message: str, *, status: int, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.code = code


class ServiceError(APIError, is_retryable=True):
    """Our side failed; the same request may succeed later."""


class QueueFull(ServiceError, status=503, code="queue_full", error_type="overloaded_error"):
    """The admission queue is at its limit."""


class QueueTimeout(ServiceError, status=408, code="queue_timeout", error_type="overloaded_error"):
    """The request waited longer than allowed for a slot."""


class RequestTimeout(ServiceError, status=408, code="request_timeout"):
    """The body did not arrive in the time allowed."""


class RateLimited(ServiceError, status=429, code="rate_limit_exceeded", error_type="rate_limit_error"):
    """A limit of the API key is reached."""


class DeadlineExceeded(ServiceError, status=504, code="deadline_exceeded", is_retryable=False):
    """The request's own deadline passed before its answer was complete."""


class LaneUnavailable(ServiceError, status=503, code="lane_unavailable"):
    """No lane that could serve the request is ready."""


class StoreUnavailable(ServiceError, status=503, code="store_unavailable"):
    """The store of runs cannot be read or written: it is full, locked or away."""


class GatewayStopped(ServiceError, status=503, code="gateway_stopped"):
    """The gateway stopped while it was answering; what came until then stands."""


class LaneFailed(ServiceError, status=502, code="lane_failed"):
    """The lane died, broke the protocol or aborted the request on its own."""


class InternalError(ServiceError, status=500, code="internal_error", is_retryable=False):
    """A fault of ours; details are in the log, under the request id."""


class ConnectionFailed(OutriderError):
    """The SDK could not reach the server, or the connection broke."""


class ConnectionTimeout(ConnectionFailed):
    """The SDK's own timeout passed."""


class TurnLimitReached(OutriderError):
    """An agent had no answer after as many turns as it may take; its session holds them."""


class SetupError(OutriderError):
    """The operator must change something; printed as one line."""


class ConfigError(SetupError):
    """A configuration file or an environment variable is wrong."""


class PolicyError(SetupError):
    """A policy file is wrong; the message begins `file:line:column: path:`."""


class ModelError(SetupError):
    """Model files are missing, damaged, of another architecture, or cannot be written."""


_BY_CODE: Mapping[str, type[APIError]] = {"invalid_request": InvalidRequest} | {
    str(kind.code): kind
    for base in (RequestError, ServiceError)
    for kind in base.__subclasses__()
    if "code" in vars(kind)
}


def from_wire(status: int | None, error: Mapping[str, object] | str | None, *, default_message: str = "") -> APIError:
    """Turn a status and an `error` value from the wire into the class that wrote it.

    Accepts OpenAI's object, SGLang's flat object and its bare string; an unknown code falls back to the status.
    An error inside a stream has no status (None): its code decides, and one that says nothing is a 500.
    """
    fields: Mapping[str, object] = error if isinstance(error, Mapping) else {"message": error}
    param, code = fields.get("param"), fields.get("code")
    kind = _BY_CODE.get(str(code))
    if status is None:
        # SGLang writes the status into `code`.
        told = int(str(code)) if str(code).isdecimal() and 400 <= int(str(code)) < 600 else 500
        status = told if kind is None else kind.status
    message = str(fields.get("message") or default_message or f"HTTP {status}")
    param_text = None if param is None else str(param)
    if kind is not None and kind.status == status:
        return kind(message, param=param_text)
    if 400 <= status < 500 and status not in (408, 409, 429):
        known = {400: InvalidRequest, 413: BodyTooLarge, 415: UnsupportedMediaType}.get(status)
        if known is not None and code in (None, status, str(status)):
            return known(message, param=param_text)
        return Rejected(message, status=status, code=None if code is None else str(code), param=param_text)
    failure = ServiceError(message, param=param_text)
    failure.status, failure.code = status, None if code is None else str(code)
    return failure

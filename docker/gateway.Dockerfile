# The gateway: HTTP, admission, policies. No tensor library; the lanes are other containers.
#
#   docker build --file docker/gateway.Dockerfile --tag outrider-gateway .
#   docker run --read-only --publish 8000:8000 --volume $PWD/gateway.yaml:/etc/outrider/gateway.yaml:ro outrider-gateway
#
# Needs BuildKit, for the cache mounts. The base is pinned by an exact tag and by no digest: where this was written no
# image registry is reached. To pin it: docker buildx imagetools inspect TAG, then FROM TAG@sha256:...
FROM python:3.11.13-slim-bookworm AS build
WORKDIR /src
# The wheel is built by what the lock says, not in an environment that pip would fill with what is newest.
COPY requirements.lock ./
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip install --constraint requirements.lock hatchling
COPY pyproject.toml README.md LICENSE ./
COPY backend backend
COPY policies policies
COPY workloads workloads
COPY heads heads
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip wheel --no-build-isolation --no-deps --wheel-dir /dist . \
    && python -m venv --without-pip /opt/outrider \
    && set -- /dist/*.whl \
    && python -m pip --python /opt/outrider/bin/python install --constraint requirements.lock "$1[postgres,tracing]"

FROM python:3.11.13-slim-bookworm
RUN groupadd --gid 10001 outrider \
    && useradd --uid 10001 --gid outrider --no-create-home --home-dir /var/lib/outrider --shell /usr/sbin/nologin outrider \
    && install --directory --owner outrider --group outrider /var/lib/outrider
COPY --from=build /opt/outrider /opt/outrider
# Nothing else is ever written: durable runs go to the cache folder where a volume is there, and to PostgreSQL.
ENV PATH=/opt/outrider/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    OUTRIDER_CACHE=/var/lib/outrider
USER 10001:10001
WORKDIR /var/lib/outrider
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=15s --retries=3 \
    CMD ["python", "-c", "import urllib.request as http; http.urlopen('http://127.0.0.1:8000/live', timeout=3)"]
# The shell replaces itself, so that signals arrive; it is there to send the log, which goes to standard error, to
# standard output: what comes by the other is an error to some collectors of logs.
ENTRYPOINT ["/bin/sh", "-c", "exec outrider \"$@\" 2>&1", "outrider"]
CMD ["serve", "--host", "0.0.0.0", "--config", "/etc/outrider/gateway.yaml", "--access-log"]

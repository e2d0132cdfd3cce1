# The embedded engine on a CPU, as a lane of its own.
#
#   docker build --file docker/engine.Dockerfile --tag outrider-engine .
#   docker run --volume outrider-cache:/var/lib/outrider outrider-engine model pull
#   docker run --read-only --publish 30000:30000 --volume outrider-cache:/var/lib/outrider outrider-engine
#
# Needs BuildKit, for the cache mounts. The base is pinned by an exact tag and by no digest: see gateway.Dockerfile.
FROM python:3.11.13-slim-bookworm AS build
# Where the build of torch for CPUs is: the usual index has the one for CUDA, which is several gigabytes larger.
# Empty takes the index that pip is set up with.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /src
COPY requirements.lock ./
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip install --constraint requirements.lock hatchling \
    && python -m venv /opt/outrider \
    && /opt/outrider/bin/python -m pip install --constraint requirements.lock --no-deps \
        ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY pyproject.toml README.md LICENSE ./
COPY backend backend
COPY policies policies
COPY workloads workloads
COPY heads heads
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip wheel --no-build-isolation --no-deps --wheel-dir /dist . \
    && set -- /dist/*.whl \
    && /opt/outrider/bin/python -m pip install --constraint requirements.lock "$1[engine]"

FROM python:3.11.13-slim-bookworm
RUN groupadd --gid 10001 outrider \
    && useradd --uid 10001 --gid outrider --no-create-home --home-dir /var/lib/outrider --shell /usr/sbin/nologin outrider \
    && install --directory --owner outrider --group outrider /var/lib/outrider
COPY --from=build /opt/outrider /opt/outrider
# Models and measured tables are in the cache folder, for which a volume is meant.
ENV PATH=/opt/outrider/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    OUTRIDER_CACHE=/var/lib/outrider
USER 10001:10001
WORKDIR /var/lib/outrider
EXPOSE 30000
STOPSIGNAL SIGTERM
# Loading a model takes from seconds to minutes.
HEALTHCHECK --interval=10s --timeout=5s --start-period=180s --retries=3 \
    CMD ["python", "-c", "import urllib.request as http; http.urlopen('http://127.0.0.1:30000/ready', timeout=3)"]
# As in gateway.Dockerfile: signals arrive, and the log goes to standard output.
ENTRYPOINT ["/bin/sh", "-c", "exec outrider \"$@\" 2>&1", "outrider"]
CMD ["engine", "--host", "0.0.0.0"]

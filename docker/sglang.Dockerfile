# A SGLang lane on CUDA 13: SGLang 0.5.23, FlashInfer, and our plugin, by which a request's plan is kept inside the lane.
#
#   docker build --file docker/sglang.Dockerfile --tag outrider-sglang .
#   docker run --gpus all --shm-size 8g --volume models:/var/lib/outrider outrider-sglang --model-path MODEL ...
#
# Arguments are those of sglang.launch_server; `outrider lanes plan` prints them for a configuration. Needs BuildKit, for
# the cache mounts. The base is pinned by an exact tag and by no digest: see gateway.Dockerfile. Both stages need the
# compiler of CUDA: kernels are compiled when they are first used, and kept in the volume.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04 AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements.lock docker/sglang.lock ./
# Byte-code is written here, once, and not by each process of a lane at its start.
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /opt/build \
    && /opt/build/bin/python -m pip install --constraint requirements.lock hatchling \
    && python3 -m venv /opt/sglang \
    && /opt/sglang/bin/python -m pip install --no-deps --requirement sglang.lock
COPY pyproject.toml README.md LICENSE ./
COPY backend backend
COPY policies policies
COPY workloads workloads
COPY heads heads
# Without dependencies: what runs inside SGLang needs torch, which is there.
RUN /opt/build/bin/python -m pip wheel --no-build-isolation --no-deps --wheel-dir /dist . \
    && /opt/sglang/bin/python -m pip install --no-deps /dist/*.whl

FROM nvidia/cuda:13.0.1-devel-ubuntu24.04
# python3-dev and g++, which the base has: the n-gram drafter of SGLang is compiled at its first start.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libnuma1 python3-dev \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 outrider \
    && useradd --uid 10001 --gid outrider --no-create-home --home-dir /var/lib/outrider --shell /usr/sbin/nologin outrider \
    && install --directory --owner outrider --group outrider /var/lib/outrider
COPY --from=build /opt/sglang /opt/sglang
# Models and compiled kernels lie under the home folder, for which a volume is meant; /tmp has to be writable too.
ENV PATH=/opt/sglang/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/var/lib/outrider \
    HF_HOME=/var/lib/outrider/huggingface
USER 10001:10001
WORKDIR /var/lib/outrider
EXPOSE 30000
STOPSIGNAL SIGTERM
# Loading a large model takes many minutes; /ready generates nothing.
HEALTHCHECK --interval=10s --timeout=5s --start-period=1800s --retries=6 \
    CMD ["python", "-c", "import urllib.request as http; http.urlopen('http://127.0.0.1:30000/ready', timeout=3)"]
# As in gateway.Dockerfile: signals arrive, and the log goes to standard output.
ENTRYPOINT ["/bin/sh", "-c", "exec python -m sglang.launch_server --host 0.0.0.0 --port 30000 \"$@\" 2>&1", "sglang"]

#!/usr/bin/env bash
# Compares flashinfer with sdpa on this machine's GPU: single calls first, then whole models.
# Exit code: 0 equal, 1 different, 2 cannot run here, 124 over LIMIT_S seconds in one of the two (a first run compiles the kernels).
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
export PYTHONPATH="$PWD/backend${PYTHONPATH:+:$PYTHONPATH}"
if ! "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
    echo "attention_check: needs torch with CUDA in $python" >&2
    exit 2
fi
timeout "${LIMIT_S:-170}" "$python" tests/gpu/attention_check.py "$@"
timeout "${LIMIT_S:-170}" "$python" tests/gpu/model_check.py

#!/usr/bin/env bash
# Real SGLang lanes on this machine's GPU, with FlashInfer: the contract of lanes for plain decoding, n-grams, a draft
# model and a given head, one server after the other, and tokens per second of each. $PYTHON has this package, sglang,
# flashinfer and pytest with pytest-asyncio and pytest-timeout installed.
#
#   tests/gpu/lanes.sh MODEL [eagle2=HEAD | eagle3=HEAD]
#
# Exit code: 0 kept, 1 broken, 2 cannot run here, 124 over LIMIT_S seconds.
set -euo pipefail
if (($# < 1 || $# > 2)) || { (($# == 2)) && [[ $2 != eagle[23]=* ]]; }; then
    sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
needed='import flashinfer, pytest_asyncio, pytest_timeout, sglang, sys, torch; from importlib.metadata import entry_points
sys.exit(not (torch.cuda.is_available() and entry_points(group="sglang.srt.plugins", name="outrider")))'
if ! "$python" -c "$needed"; then
    echo "lanes.sh: $python lacks one of outrider (installed), sglang, flashinfer, pytest-asyncio, pytest-timeout, a GPU" >&2
    exit 2
fi
export OUTRIDER_LANES_DEVICE=cuda OUTRIDER_LANES_MODEL=$1
if (($# == 2)); then
    name=${2%%=*}
    export "OUTRIDER_LANES_${name^^}=${2#*=}"
fi
# Warnings are errors elsewhere; those of another environment's packages are not ours.
timeout "${LIMIT_S:-540}" "$python" -m pytest tests/contract/test_contract.py -q -s -W default -p no:cacheprovider -m sglang

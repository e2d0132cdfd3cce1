"""GPUs of this machine: what NVML says, and nothing where it says nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from outrider.core import GpuLoad
from outrider.profiles import SGLangSection
from outrider.runtimes.gpus import gpu_load, gpus_meant, read_gpus
from outrider.runtimes.lane import Lane
from outrider.telemetry.metrics import Metrics

GIB = 1024**3
MEMORY = SimpleNamespace(used=3 * GIB, total=80 * GIB, free=77 * GIB)


@pytest.mark.parametrize(("rates", "share"), [(SimpleNamespace(gpu=37, memory=5), 0.37), (None, None)])
def test_nvml_s_numbers_become_shares_and_bytes(rates, share):
    """Percent become a share; a utilisation that is not measured is unknown, and the memory is known."""
    assert gpu_load(2, rates, MEMORY) == GpuLoad(2, share, 3 * GIB, 80 * GIB)


def test_a_gpu_that_is_not_there_is_unknown():
    """Neither an error nor idle: no library, no driver, or no GPU of that number."""
    assert read_gpus([63]) is None


@pytest.mark.parametrize(
    ("named", "num_gpus", "meant"), [((2, 3), 4, [2, 3]), ((), 1, [0]), ((), 2, []), ((), 0, []), ((63,), 1, [63])]
)
def test_of_several_gpus_none_is_guessed(named, num_gpus, meant):
    """Another server may use them."""
    assert list(gpus_meant(named, num_gpus)) == meant


def test_a_lane_describes_its_gpus_and_forgets_them_with_its_server():
    """Null while unknown; a GPU without utilisation has no such metric, and its memory has one."""
    lane, metrics = Lane("a", "http://a", SGLangSection(name="a", kind="sglang")), Metrics()
    assert lane.to_wire()["gpus"] is None
    assert "outrider_gpu_memory_used_bytes{" not in metrics.render({}, {lane.name: lane.gpus}).decode()
    lane.gpus = (gpu_load(0, SimpleNamespace(gpu=50), MEMORY), gpu_load(1, None, MEMORY))
    shown = {"index": 0, "utilisation": 0.5, "used_bytes": 3 * GIB, "total_bytes": 80 * GIB}
    assert lane.to_wire()["gpus"] == [shown, shown | {"index": 1, "utilisation": None}]
    page = metrics.render({}, {lane.name: lane.gpus}).decode()
    assert 'outrider_gpu_utilisation{gpu="0",lane="a"} 0.5' in page
    assert 'outrider_gpu_utilisation{gpu="1"' not in page
    assert 'outrider_gpu_memory_used_bytes{gpu="1",lane="a"} 3.221225472e+09' in page
    lane.fails("gone")
    assert lane.to_wire()["gpus"] is None
    page = metrics.render({}, {lane.name: lane.gpus}).decode()
    assert "outrider_gpu_utilisation{" not in page and "outrider_gpu_memory_used_bytes{" not in page

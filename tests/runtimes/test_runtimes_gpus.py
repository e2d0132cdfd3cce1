"""GPUs of this machine: what NVML says, and nothing where it says nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from outrider.core import GpuLoad
from outrider.profiles import SGLangSection
from outrider.runtimes.gpus import gpu_load, gpus_by, gpus_meant, read_gpus
from outrider.runtimes.lane import Lane
from outrider.telemetry.metrics import Metrics

GIB = 1024**3
SIZES = (3 * GIB, 80 * GIB)
MEMORY = SimpleNamespace(used=3 * GIB, total=80 * GIB, free=77 * GIB)


@pytest.mark.parametrize(("rates", "share"), [(SimpleNamespace(gpu=37, memory=5), 0.37), (None, None)])
def test_nvml_s_numbers_become_shares_and_bytes(rates, share):
    """Percent become a share; a utilisation that is not measured is unknown, and the memory is known."""
    assert gpu_load(2, rates, MEMORY) == GpuLoad(2, share, 3 * GIB, 80 * GIB)


def test_a_gpu_that_is_not_there_is_unknown():
    """Neither an error nor idle: no library, no driver, or no GPU of that number."""
    assert read_gpus([63]) is None


class Machine:
    """NVML of a machine with these GPUs: what each says of its utilisation and memory, None where it says nothing."""

    NVMLError = OSError

    def __init__(self, *gpus):
        self._gpus = gpus

    def nvmlDeviceGetCount(self):
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        if index >= len(self._gpus):
            raise self.NVMLError("invalid argument")
        return self._gpus[index]

    def nvmlDeviceGetUtilizationRates(self, handle):
        return self._said(handle[0])

    def nvmlDeviceGetMemoryInfo(self, handle):
        return self._said(handle[1])

    def _said(self, value):
        if value is None:
            raise self.NVMLError("not supported")
        return value


def test_what_nvml_does_not_say_is_unknown_and_never_nothing():
    """A part of a GPU has no utilisation; without memory, without the GPU, or among several, all is unknown."""
    busy, part, lost = (SimpleNamespace(gpu=100), MEMORY), (None, MEMORY), (SimpleNamespace(gpu=0), None)
    assert gpus_by(Machine(busy, part), [0, 1]) == (GpuLoad(0, 1.0, *SIZES), GpuLoad(1, None, *SIZES))
    assert gpus_by(Machine(busy), []) == (GpuLoad(0, 1.0, *SIZES),)
    for machine, named in [(Machine(busy, busy), []), (Machine(), []), (Machine(busy), [1]), (Machine(lost), [0])]:
        assert gpus_by(machine, named) is None


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

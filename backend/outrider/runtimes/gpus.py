"""How busy the GPUs of this machine are, by NVML; unknown without its library, a driver or a GPU.

Metrics, `/outrider/lanes` and the inputs of decisions show it; nothing is decided by it. A server takes its memory
when it starts, so what of its own cache is in use tells how much is left, and the policy goes by that. Utilisation is
near 1 as soon as one request runs, and how many run is known; what others' work on the GPU costs is in the times of
rounds, by which the policy corrects its costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

from outrider.core import GpuLoad


class Nvml(Protocol):
    """What is used of NVML, as `pynvml` has it."""

    NVMLError: type[Exception]

    def nvmlDeviceGetCount(self) -> int:
        """GPUs of this machine."""

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        """What the next two ask about."""

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        """With `gpu`, in percent."""

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        """With `used` and `total`, in bytes."""


def read_gpus(indices: Sequence[int]) -> tuple[GpuLoad, ...] | None:
    """The GPUs with these numbers, the only one for none. Takes milliseconds.

    None when NVML cannot tell, and for none where there are several: which of them are meant is not known.
    """
    nvml = _library()
    return None if nvml is None else gpus_by(nvml, indices)


def gpus_by(nvml: Nvml, indices: Sequence[int]) -> tuple[GpuLoad, ...] | None:
    """The same as this library tells it."""
    try:
        meant = gpus_meant(indices, nvml.nvmlDeviceGetCount())
        return tuple(_read(nvml, index) for index in meant) or None
    except nvml.NVMLError:
        return None


def gpus_meant(indices: Sequence[int], num_gpus: int) -> Sequence[int]:
    """The numbers given, or that of the only GPU; none when it is not known which of them a server takes."""
    return indices or range(num_gpus if num_gpus == 1 else 0)


@cache
def _library() -> Nvml | None:
    """NVML, ready to be asked; None when it is not installed or finds no driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    library: Nvml = pynvml
    return library


def _read(nvml: Nvml, index: int) -> GpuLoad:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    try:
        rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    except nvml.NVMLError:  # a share of a GPU has memory of its own and no utilisation
        rates = None
    return gpu_load(index, rates, nvml.nvmlDeviceGetMemoryInfo(handle))


def gpu_load(index: int, rates: Any, memory: Any) -> GpuLoad:
    """From NVML's structures: `rates.gpu` in percent, `memory.used` and `memory.total` in bytes."""
    utilisation = None if rates is None else rates.gpu / 100
    return GpuLoad(index, utilisation, int(memory.used), int(memory.total))

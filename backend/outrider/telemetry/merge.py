"""Pages of metrics of several processes as one, in which the samples of one name stand together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Metric

_BEGIN = "# HELP "


class LabelledRegistry(CollectorRegistry):
    """Every sample says which worker it is of: each is a series of its own, since each begins anew by itself."""

    def __init__(self, worker: int) -> None:
        super().__init__()
        self._worker = str(worker)

    def collect(self) -> Iterable[Metric]:
        """Every metric, its samples with the label `worker`."""
        for metric in super().collect():
            metric.samples = [one._replace(labels={**one.labels, "worker": self._worker}) for one in metric.samples]
            yield metric


def merged(pages: Sequence[str]) -> str:
    """One page with the samples of all; what a name means is told once."""
    heads: dict[str, str] = {}
    samples: dict[str, list[str]] = {}
    for page in pages:
        for block in page.split(_BEGIN)[1:]:
            name = block.split(" ", 1)[0]
            lines = block.splitlines()
            heads.setdefault(name, "\n".join(lines[:2]))
            samples.setdefault(name, []).extend(lines[2:])
    return "".join("\n".join([_BEGIN + head, *samples[name]]) + "\n" for name, head in heads.items())

"""Families: the samples of one worker, or of one process of relays, as Prometheus reads them, in the order of the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from aiohttp.web import Request
from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from ackwise.plugin.pages.server import Answer
from ackwise.plugin.watch.measures import Sample
from ackwise.plugin.watch.metrics import GROUP, METRICS

__all__ = ["Families", "exposed"]


def exposed(request: Request, group: str, samples: Iterable[Sample]) -> Answer:
    """The page of metrics, as its client reads them."""
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return Answer(encode(Families(group, samples)), content_type)


class Families:
    """What `prometheus_client` asks for metrics. A metric without samples is left out."""

    def __init__(self, group: str, samples: Iterable[Sample]) -> None:
        self._group = group
        self._found: defaultdict[str, list[Sample]] = defaultdict(list)
        for sample in samples:
            self._found[sample.metric].append(sample)

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        return (self._family(name, self._found[name]) for name in METRICS if name in self._found)

    def _family(self, name: str, found: list[Sample]) -> Metric:
        entry = METRICS[name]
        labels, about = (GROUP, *entry.labels), entry.meaning.replace("`", "")
        if entry.kind == "histogram":
            histogram = HistogramMetricFamily(name, about, labels=labels)
            for sample in found:
                histogram.add_metric((self._group, *sample.labels), *_durations(sample.value))
            return histogram
        family = (CounterMetricFamily if entry.kind == "counter" else GaugeMetricFamily)(name, about, labels=labels)
        for sample in found:
            assert not isinstance(sample.value, Histogram)
            family.add_metric((self._group, *sample.labels), float(sample.value))
        return family


def _durations(histogram: float | Histogram) -> tuple[list[tuple[str, float]], float]:
    """How many were at most as long as each bound, and the sum."""
    assert isinstance(histogram, Histogram)
    (metric,) = histogram.collect()
    (total,) = (sample.value for sample in metric.samples if sample.name.endswith("_sum"))
    return [(sample.labels["le"], sample.value) for sample in metric.samples if sample.name.endswith("_bucket")], total

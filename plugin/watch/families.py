"""Families: the samples of one or several workers as `prometheus_client` takes them, each metric once, in the order of the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from ackwise.plugin.watch.measures import Sample
from ackwise.plugin.watch.metrics import GROUP, METRICS

__all__ = ["families"]


def families(groups: Iterable[tuple[str, Iterable[Sample]]]) -> Iterator[Metric]:
    """The metrics of workers, each given as the name of its group and its samples. A metric without samples is left out."""
    found: defaultdict[str, list[tuple[str, Sample]]] = defaultdict(list)
    for group, samples in groups:
        for sample in samples:
            found[sample.metric].append((group, sample))
    return (_family(name, found[name]) for name in METRICS if name in found)


def _family(name: str, found: list[tuple[str, Sample]]) -> Metric:
    entry = METRICS[name]
    labels, about = (GROUP, *entry.labels), entry.meaning.replace("`", "")
    if entry.kind == "histogram":
        histogram = HistogramMetricFamily(name, about, labels=labels)
        for group, sample in found:
            histogram.add_metric((group, *sample.labels), *_durations(sample.value))
        return histogram
    family = (CounterMetricFamily if entry.kind == "counter" else GaugeMetricFamily)(name, about, labels=labels)
    for group, sample in found:
        assert not isinstance(sample.value, Histogram)
        family.add_metric((group, *sample.labels), float(sample.value))
    return family


def _durations(histogram: float | Histogram) -> tuple[list[tuple[str, float]], float]:
    """How many were at most as long as each bound, and the sum."""
    assert isinstance(histogram, Histogram)
    (metric,) = histogram.collect()
    (total,) = (sample.value for sample in metric.samples if sample.name.endswith("_sum"))
    return [(sample.labels["le"], sample.value) for sample in metric.samples if sample.name.endswith("_bucket")], total

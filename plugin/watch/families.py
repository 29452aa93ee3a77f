"""Families: the samples of one or several workers as `prometheus_client` takes them, each metric once, in the order of the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from ackwise.plugin.watch.durations import Durations
from ackwise.plugin.watch.measures import Sample
from ackwise.plugin.watch.metrics import GROUP, METRICS

__all__ = ["families"]


def families(groups: Iterable[tuple[str, Iterable[Sample]]]) -> Iterator[Metric]:
    """The metrics of workers, each given as the name of its group and its samples. A metric without samples is left out."""
    found: defaultdict[str, list[tuple[str, Sample]]] = defaultdict(list)
    for group, samples in groups:
        for sample in samples:
            found[sample.metric].append((group, sample))
    for entry in METRICS.values():
        if entry.name in found:
            yield _family(entry.name, found[entry.name])


def _family(name: str, found: list[tuple[str, Sample]]) -> Metric:
    entry = METRICS[name]
    labels, about = (GROUP, *entry.labels), entry.meaning.replace("`", "")
    if entry.kind == "histogram":
        histogram = HistogramMetricFamily(name, about, labels=labels)
        for group, sample in found:
            assert isinstance(sample.value, Durations)
            histogram.add_metric((group, *sample.labels), sample.value.buckets(), sample.value.sum)
        return histogram
    family = (CounterMetricFamily if entry.kind == "counter" else GaugeMetricFamily)(name, about, labels=labels)
    for group, sample in found:
        assert not isinstance(sample.value, Durations)
        family.add_metric((group, *sample.labels), float(sample.value))
    return family

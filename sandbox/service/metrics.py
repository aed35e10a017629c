"""The fleet's figures in Prometheus' text format. Labels are pools, states and kinds of events, never owners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from rocknroll.sandbox.lifecycle import State
from rocknroll.sandbox.overview import NO_COUNTERS
from rocknroll.sandbox.site import Site


def exposition(site: Site) -> tuple[str, str]:
    """(text, content type)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(site))
    return generate_latest(registry).decode(), CONTENT_TYPE_PLAIN_0_0_4


class _Figures(Collector):
    def __init__(self, site: Site) -> None:
        self._site = site

    def collect(self) -> Iterator[Metric]:
        sandboxes = GaugeMetricFamily("rock_sandboxes", "Sandboxes by state.", labels=["pool", "state"])
        size = GaugeMetricFamily("rock_pool_size", "Sandboxes that the pool has at most.", labels=["pool"])
        leases = GaugeMetricFamily("rock_leases", "Leases in force.", labels=["pool"])
        waiting = GaugeMetricFamily("rock_waiting", "Callers that wait for a sandbox.", labels=["pool"])
        exhausted = GaugeMetricFamily("rock_exhausted", "1 when no sandbox can ever start again.", labels=["pool"])
        starts = SummaryMetricFamily("rock_start_seconds", "Time from start to READY.", labels=["pool"])
        happened = CounterMetricFamily("rock_events", "Events since the manager began.", labels=["pool", "kind"])
        metrics = self._site.metrics()
        held = [row["pool"] for row in self._site.snapshot() if row["lease"]]
        for pool in self._site.pools():
            name, figures = pool["name"], metrics[pool["name"]]
            for state in State:
                sandboxes.add_metric([name, state.value], figures[f"state_{state.value}"])
            size.add_metric([name], pool["size"])
            leases.add_metric([name], held.count(name))
            waiting.add_metric([name], figures["waiting"])
            exhausted.add_metric([name], float(pool["exhausted"] is not None))
            started = figures.get("started", 0.0)
            starts.add_metric([name], count_value=int(started), sum_value=started * figures["start_s_mean"])
            for kind, count in figures.items():
                if kind not in NO_COUNTERS:
                    happened.add_metric([name, kind], count)
        open_ = GaugeMetricFamily("rock_alerts", "Alerts that are open.", labels=["rule", "severity"])
        raised = CounterMetricFamily("rock_alerts_raised", "Alerts since the manager began.", labels=["rule"])
        alerts = [alert for alert in self._site.alerts() if alert["resolved"] is None]
        for labels, count in Counter((alert["rule"], alert["severity"]) for alert in alerts).items():
            open_.add_metric(labels, count)
        for rule, count in self._site.alerts_raised().items():
            raised.add_metric([rule], count)
        began = GaugeMetricFamily("rock_began_timestamp_seconds", "When the manager began.", value=self._site.began)
        yield from (sandboxes, size, leases, waiting, exhausted, starts, happened, open_, raised, began)

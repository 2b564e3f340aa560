"""The daemon's numbers as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from helixd.core.machine import Machine
from helixd.core.metrics import Gauges, gauges

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Exposition(Collector):
    """Reads a machine whenever it is asked; nothing is kept beside it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """All metrics, in the text format."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Nothing: names are said when collected."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every family, with its values of now."""
        now = gauges(self._machine.jobs.values())
        yield from self._counters()
        yield from self._histograms()
        yield from _gauges(now)
        connections = GaugeMetricFamily("helix_connections", "Processes connected to the daemon.")
        connections.add_metric([], self._machine.connections)
        yield connections
        info = GaugeMetricFamily("helix_info", "Always 1; the version is its label.", labels=["version"])
        info.add_metric([self._machine.version], 1)
        yield info

    def _counters(self) -> Iterator[Metric]:
        machine, counters = self._machine, self._machine.counters
        plain = {
            "helix_deadline_misses": ("Batches that were asked for before they were ready.", counters.misses),
            "helix_samples": ("Samples that ranks have taken.", counters.samples),
            "helix_bad_samples": ("Failures of samples that could not be decoded.", counters.bad),
            "helix_loop_turns": ("Turns of the daemon's loop.", machine.turns.count),
            "helix_loop_cpu_seconds": ("CPU time of the daemon's loop.", machine.turns.cpu_sum_s),
            "helix_ignored_messages": ("Messages for loaders that are gone.", machine.ignored_messages),
            "helix_peer_sent_bytes": ("Bytes said to daemons of other nodes.", counters.peer_bytes),
            "helix_guest_samples": ("Samples that were decoded for other nodes.", counters.guests),
            "helix_staged_samples": ("Samples begun before their batch had its place.", counters.staged),
            "helix_remote_bytes": ("Bytes of samples that other nodes decoded.", counters.remote.nbytes),
            "helix_gate_refusals": ("Late batches of which no sample was moved.", counters.remote.refused),
            "helix_cut_off_connections": ("Connections that broke the protocol.", counters.cut_off),
        }
        for name, (what, value) in plain.items():
            family = CounterMetricFamily(name, what)
            family.add_metric([], value)
            yield family
        stages = CounterMetricFamily("helix_stage_seconds", "Worker time by stage.", labels=["stage"])
        for stage, seconds in counters.stage_s.items():
            stages.add_metric([stage], seconds)
        yield stages
        yield from self._remote()
        restarts = CounterMetricFamily(
            "helix_worker_restarts", "Workers that ended unasked, by reason.", labels=["reason"]
        )
        for reason, n in counters.restarts.items():
            restarts.add_metric([reason], n)
        yield restarts

    def _remote(self) -> Iterator[Metric]:
        errands = self._machine.counters.remote
        samples = CounterMetricFamily(
            "helix_remote_samples", "Samples that other nodes were asked to decode.", labels=["outcome"]
        )
        samples.add_metric(["landed"], errands.landed)
        samples.add_metric(["declined"], errands.declined)
        samples.add_metric(["taken_back"], errands.taken_back)
        yield samples
        seconds = CounterMetricFamily(
            "helix_remote_seconds", "From asking for these samples to having them.", labels=["what"]
        )
        seconds.add_metric(["predicted"], errands.predicted_s)
        seconds.add_metric(["took"], errands.took_s)
        yield seconds

    def _histograms(self) -> Iterator[Metric]:
        counters = self._machine.counters
        waits = HistogramMetricFamily("helix_input_wait_seconds", "How long ranks waited for a batch.")
        waits.add_metric([], counters.waits.buckets(), counters.waits.total)
        yield waits
        decode = HistogramMetricFamily(
            "helix_sample_decode_seconds", "CPU time of decoded pieces of samples.", labels=["kind"]
        )
        for kind, histogram in sorted(counters.decode.items()):
            decode.add_metric([kind], histogram.buckets(), histogram.total)
        yield decode


def _gauges(now: Gauges) -> Iterator[Metric]:
    plain = {
        "helix_jobs": ("Jobs that are served.", now.jobs),
        "helix_loaders": ("Loaders of these jobs.", now.loaders),
        "helix_ranks": ("Ranks of these loaders.", now.ranks),
        "helix_workers": ("Workers.", now.workers),
        "helix_workers_busy": ("Workers that have a task.", now.busy_workers),
        "helix_ignored_releases": ("Releases that the rings of now have passed over.", now.ignored_releases),
        "helix_quarantined_samples": ("Samples that users' lists leave out.", now.quarantined),
        "helix_bad_samples_in_epoch": ("Bad samples of the loaders' epochs, this and last.", now.bad_samples),
    }
    for name, (what, value) in plain.items():
        family = GaugeMetricFamily(name, what)
        family.add_metric([], value)
        yield family
    tiers = GaugeMetricFamily(
        "helix_device_trainers", "Trainers by how batches get to their accelerator.", labels=["tier"]
    )
    for tier, n in sorted(now.tiers.items()):
        tiers.add_metric([tier], n)
    yield tiers
    ring = GaugeMetricFamily("helix_ring_bytes", "Bytes of rings, by what they hold.", labels=["state"])
    for state, nbytes in (
        ("free", now.ring_free),
        ("filling", now.ring_filling),
        ("leased", now.ring_leased),
    ):
        ring.add_metric([state], nbytes)
    yield ring

"""What Prometheus reads: counts of the engine at the moment it asks, and times of requests as they go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from foredraft.server.backend import Delta, Load

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
OURS: Final = "foredraft_"
VLLM: Final = "vllm:"
_FIRST: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)  # seconds
_BETWEEN: Final = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5)
_WHOLE: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

LoadOf = Callable[[], Load | None]


class Meters:
    """The metrics of one server, in a registry of their own; ``vllm`` adds the same under vLLM's names."""

    def __init__(self, model: str, *, vllm: bool, load: LoadOf) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Engine(load))
        self._sets = [_Times(OURS, self._registry, {})]
        if vllm:
            labels = {"model_name": model, "engine": "0"}
            self._registry.register(_VllmEngine(load, labels))
            self._sets.append(_Times(VLLM, self._registry, labels))
        self.http = Counter(f"{OURS}http_responses", "Answers by status.", ["status"], registry=self._registry)

    def exposition(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)

    def answered(self, status: int) -> None:
        """Count an answer of the server."""
        self.http.labels(str(status)).inc()

    def prompt(self, tokens: int) -> None:
        """Count a prompt."""
        for times in self._sets:
            times.prompt_tokens.inc(tokens)

    def saw(self, delta: Delta, submitted: float, before: float | None) -> None:
        """Count what a round brought an answer; ``before`` is when it last got something, None for nothing yet."""
        for times in self._sets:
            if delta.tokens:
                times.tokens.inc(delta.tokens)
                if before is None:
                    times.first.observe(delta.at - submitted)
                else:
                    each = (delta.at - before) / delta.tokens
                    for _ in range(delta.tokens):
                        times.between.observe(each)
            if delta.finish_reason is not None:
                times.whole.observe(delta.at - submitted)
                times.ended(delta.finish_reason)


class _Times:
    """Times and counts of requests under one prefix."""

    def __init__(self, prefix: str, registry: CollectorRegistry, labels: dict[str, str]) -> None:
        names = list(labels)

        def histogram(name: str, what: str, buckets: Iterable[float]) -> Histogram:
            whole = Histogram(f"{prefix}{name}", what, names, registry=registry, buckets=tuple(buckets))
            return whole.labels(**labels) if labels else whole

        def counter(name: str, what: str) -> Counter:
            whole = Counter(f"{prefix}{name}", what, names, registry=registry)
            return whole.labels(**labels) if labels else whole

        self.first = histogram("time_to_first_token_seconds", "From a request to its first token.", _FIRST)
        self.between = histogram("inter_token_latency_seconds", "From one token to the next.", _BETWEEN)
        self.whole = histogram("e2e_request_latency_seconds", "From a request to the end of an answer.", _WHOLE)
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self.tokens = counter("generation_tokens", "Tokens of answers.")
        self._success = Counter(
            f"{prefix}request_success", "Answers by how they ended.", [*names, "finished_reason"], registry=registry
        )
        self._labels = labels

    def ended(self, reason: str) -> None:
        """Count an answer."""
        self._success.labels(**self._labels, finished_reason=reason).inc()


class _Engine(Collector):
    """What the engine is doing, under our names."""

    def __init__(self, load: LoadOf) -> None:
        self._load = load

    def collect(self) -> Iterator[Metric]:
        """Yield every figure as it is now; none while the model is loaded."""
        load = self._load()
        if load is None:
            return
        yield _gauge("requests_running", "Answers that are being written.", load.running)
        yield _gauge("requests_waiting", "Answers that wait for a slot.", load.waiting)
        yield _gauge("slots", "Answers that can be written at once.", load.slots)
        yield _gauge("slots_free", "Slots that nobody uses.", load.free)
        yield _counter("rounds", "Passes over a batch.", load.rounds)
        decisions = CounterMetricFamily(
            f"{OURS}planner_decisions", "Rounds of one answer, with guesses and without.", labels=["decision"]
        )
        for decision, count in load.decisions.items():
            decisions.add_metric([decision], count)
        yield decisions
        yield from _drafts(load)
        faults = CounterMetricFamily(f"{OURS}drafter_faults", "Answers that lost their drafter.", labels=["drafter"])
        for drafter, count in load.faults.items():
            faults.add_metric([drafter], count)
        yield faults
        yield _counter("engine_failures", "Answers that a fault of the model ended.", load.failures)
        if load.speedup is not None:
            yield _gauge("realised_speedup", "Of the last seconds, against plain decoding.", load.speedup)
        if load.tokens_per_s is not None:
            yield _gauge("tokens_per_second", "Of the last seconds, all answers.", load.tokens_per_s)
        if load.plain_tokens_per_s is not None:
            yield _gauge("plain_tokens_per_second", "What plain decoding gives one answer.", load.plain_tokens_per_s)


def _drafts(load: Load) -> Iterator[Metric]:
    """Yield what each drafter did."""
    name = f"{OURS}spec_decode_num"
    drafts = CounterMetricFamily(f"{name}_drafts", "Drafts.", labels=["drafter"])
    drafted = CounterMetricFamily(f"{name}_draft_tokens", "Guesses.", labels=["drafter"])
    accepted = CounterMetricFamily(f"{name}_accepted_tokens", "Guesses that were accepted.", labels=["drafter"])
    depths = CounterMetricFamily(
        f"{name}_accepted_tokens_per_pos", "Accepted guesses by their depth.", labels=["drafter", "position"]
    )
    for drafter, count in load.drafts.items():
        drafts.add_metric([drafter], count.drafts)
        drafted.add_metric([drafter], count.drafted)
        accepted.add_metric([drafter], count.accepted)
        for position, survived in enumerate(count.accepted_per_position):
            depths.add_metric([drafter, str(position)], survived)
    yield from (drafts, drafted, accepted, depths)


class _VllmEngine(Collector):
    """The same under vLLM's names, all drafters together."""

    def __init__(self, load: LoadOf, labels: dict[str, str]) -> None:
        self._load = load
        self._names = list(labels)
        self._values = list(labels.values())

    def collect(self) -> Iterator[Metric]:
        """Yield every figure as it is now."""
        load = self._load()
        if load is None:
            return
        yield self._gauge("num_requests_running", load.running)
        yield self._gauge("num_requests_waiting", load.waiting)
        yield self._gauge("kv_cache_usage_perc", 1 - load.free / load.slots)
        counts = load.drafts.values()
        yield self._counter("spec_decode_num_drafts", sum(count.drafts for count in counts))
        yield self._counter("spec_decode_num_draft_tokens", sum(count.drafted for count in counts))
        yield self._counter("spec_decode_num_accepted_tokens", sum(count.accepted for count in counts))
        depths = CounterMetricFamily(
            f"{VLLM}spec_decode_num_accepted_tokens_per_pos", "", labels=[*self._names, "position"]
        )
        for position in range(max((len(count.accepted_per_position) for count in counts), default=0)):
            survived = sum(sum(count.accepted_per_position[position : position + 1]) for count in counts)
            depths.add_metric([*self._values, str(position)], survived)
        yield depths

    def _gauge(self, name: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"{VLLM}{name}", "", labels=self._names)
        family.add_metric(self._values, value)
        return family

    def _counter(self, name: str, value: float) -> Metric:
        family = CounterMetricFamily(f"{VLLM}{name}", "", labels=self._names)
        family.add_metric(self._values, value)
        return family


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{OURS}{name}", what, value=value)


def _counter(name: str, what: str, value: float) -> Metric:
    return CounterMetricFamily(f"{OURS}{name}", what, value=value)

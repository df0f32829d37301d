"""What Prometheus reads is what happened."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.client import Client, Serve

pytest.importorskip("prometheus_client", reason="the server needs the serve extra")
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

ASKED = {"temperature": 0, "max_tokens": 40, "speculative": {"drafter": "suffix", "draft_tokens": 5}}


def read(client: Client) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    reply = client.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    families = list(text_string_to_metric_families(reply.body.decode()))
    assert len({family.name for family in families}) == len(families)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def value(figures: Any, name: str, **labels: str) -> float:
    found: float = figures[name, tuple(sorted(labels.items()))]
    return found


def test_counts_are_those_of_the_answers(open_server: Serve) -> None:
    client = open_server(vllm=True)
    replies = [client.complete("abc abc abc", **ASKED).json for _ in range(3)]
    client.complete("x", temperature=-1)
    figures = read(client)
    told = [reply["speculative"]["by_drafter"]["suffix"] for reply in replies]
    depths = [reply["speculative"]["accepted_per_position"] for reply in replies]
    assert told[0]["accepted"] > 0
    names = {"_num_drafts": "rounds", "_num_draft_tokens": "drafted", "_num_accepted_tokens": "accepted"}
    vllm = {"model_name": "tiny", "engine": "0"}
    for name, of in names.items():
        count = sum(each[of] for each in told)
        assert value(figures, f"foredraft_spec_decode{name}_total", drafter="suffix") == count
        assert value(figures, f"vllm:spec_decode{name}_total", **vllm) == count
    for position in range(max(map(len, depths))):
        count = sum(sum(each[position : position + 1]) for each in depths)
        per_pos = "spec_decode_num_accepted_tokens_per_pos_total"
        assert value(figures, f"foredraft_{per_pos}", drafter="suffix", position=str(position)) == count
        assert value(figures, f"vllm:{per_pos}", **vllm, position=str(position)) == count
    for prefix, labels in (("foredraft_", {}), ("vllm:", vllm)):
        assert value(figures, f"{prefix}generation_tokens_total", **labels) == 120
        assert value(figures, f"{prefix}prompt_tokens_total", **labels) == 33
        assert value(figures, f"{prefix}time_to_first_token_seconds_count", **labels) == 3
        assert value(figures, f"{prefix}inter_token_latency_seconds_count", **labels) == 117
        assert value(figures, f"{prefix}e2e_request_latency_seconds_count", **labels) == 3
        assert value(figures, f"{prefix}request_success_total", **labels, finished_reason="length") == 3
    passes = sum(reply["speculative"]["rounds"] for reply in replies)
    drafts = sum(each["rounds"] for each in told)
    assert value(figures, "foredraft_planner_decisions_total", decision="draft") == drafts
    assert value(figures, "foredraft_planner_decisions_total", decision="plain") == passes - drafts
    assert value(figures, "foredraft_slots_free") == value(figures, "foredraft_slots") == 8
    assert value(figures, "foredraft_requests_running") == value(figures, "vllm:num_requests_waiting", **vllm) == 0
    assert value(figures, "foredraft_http_responses_total", status="400") == 1
    assert value(figures, "foredraft_realised_speedup") > 0


def test_scoring_a_prompt_is_no_speculation(open_server: Serve) -> None:
    client = open_server()
    client.complete("a prompt to be scored", max_tokens=0, echo=True, logprobs=0)
    figures = read(client)
    assert not any("spec_decode" in name for name, _ in figures)
    assert value(figures, "foredraft_planner_decisions_total", decision="draft") == 0
    assert not any(name.startswith("vllm:") for name, _ in figures)


def test_nothing_is_registered_for_everybody(open_server: Serve) -> None:
    before = {metric.name for metric in REGISTRY.collect()}
    open_server(vllm=True).complete("a", max_tokens=1)
    open_server(vllm=True).complete("a", max_tokens=1)
    assert {metric.name for metric in REGISTRY.collect()} == before


def test_what_is_going_on(open_server: Serve) -> None:
    client = open_server(engine={"slots": 3})
    quiet = client.get("/stats").json
    assert (quiet["slots"], quiet["running"], quiet["load"], quiet["draft_length"]) == (3, 0, 0, None)
    client.complete("abc abc abc", **ASKED)
    busy = client.get("/stats").json
    assert 0 < busy["draft_length"] <= 5
    assert 0 < busy["acceptance"] <= 1
    assert busy["tokens_per_s"] > 0
    assert busy["plain_tokens_per_s"] > 0
    assert busy["drafters"]["suffix"]["accepted"] > 0

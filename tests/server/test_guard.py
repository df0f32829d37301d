"""Who may ask, and from where."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from foredraft import LanguageModel
from tests.server.client import Client, Serve, call

pytest.importorskip("fastapi", reason="the server needs the serve extra")
from foredraft.server.app import create_app
from foredraft.server.keys import Keys
from foredraft.server.limits import Limits
from foredraft.server.state import ServerState

KEY, OTHER = "sk-this-is-a-key", "sk-another-key"
CLOSED = ("/v1/models", "/v1/models/tiny", "/metrics", "/version", "/stats", "/openapi.json", "/nothing")


@pytest.fixture(scope="module")
def keyed(open_server: Serve) -> Client:
    return open_server(keys=Keys([KEY, OTHER]), limits=Limits(per_key=3))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    "header",
    [
        None, "", KEY, "Bearer", "Bearer ", f"Basic {KEY}", f"Bearer {KEY.upper()}", f"Bearer {KEY[:-1]}",
        f"Bearer {KEY}x", f"Bearer {KEY} {KEY}", f"Bearer {KEY}\x00", f"Bearer{KEY}", "Bearer " + "k" * 10_000,
        "Bearer ÿ",
    ],
)  # fmt: skip
def test_wrong_and_almost_right_keys(keyed: Client, header: str | None) -> None:
    sent = {} if header is None else {"authorization": header}
    for path in CLOSED:
        reply = keyed.get(path, **sent)
        assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
        assert reply.headers["www-authenticate"] == "Bearer"
        assert KEY not in reply.error["message"]
    assert keyed.post("/v1/completions", {"prompt": "a"}, **sent).status == 401
    assert keyed.post("/v1/completions", (b"[" * 10**6,), **sent).status == 401  # before anything of it is read
    assert [keyed.get(path, **sent).status for path in ("/health", "/ready", "/")] == [200] * 3


def test_right_keys(keyed: Client) -> None:
    for header in (bearer(KEY), bearer(OTHER), {"authorization": f"bearer  {KEY}"}):
        assert [keyed.get(path, **header).status for path in CLOSED] == [200] * 6 + [404]
    assert keyed.get("/version", host="anything.example", **bearer(KEY)).status == 200  # a key is proof enough


def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import hmac

    compared: list[tuple[Any, Any]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = Keys([KEY, OTHER, "a third key"])
    for sent in (KEY, "a third key", "none of them", ""):
        compared.clear()
        assert (keys.owner(f"Bearer {sent}".encode()) is not None) == (sent in (KEY, "a third key"))
        assert len(compared) == 3
        assert {len(part) for pair in compared for part in pair} == {32}  # digests, whatever was sent
    assert KEY not in repr(vars(keys))


def test_keys_share_nothing(keyed: Client) -> None:
    """Neither what lies in the cache nor what was said: both would tell by the time an answer takes."""
    long = {"prompt": "a long beginning that two clients share, word by word", "max_tokens": 30, "seed": 1}
    fixed = {"drafter": "suffix", "draft_tokens": 8}  # so that counts do not depend on what a pass takes
    asked = {**long, "cache_scope": "common", "temperature": 1.2, "speculative": fixed}
    mine = [keyed.post("/v1/completions", asked, **bearer(KEY)).json for _ in range(2)]
    theirs = keyed.post("/v1/completions", asked, **bearer(OTHER)).json
    cached = [reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in (*mine, theirs)]
    assert cached[0] == cached[2] == 0
    assert cached[1] > 20
    accepted = [reply["speculative"]["accepted"] for reply in (*mine, theirs)]
    assert accepted[2] == accepted[0] < accepted[1]
    assert len({reply["choices"][0]["text"] for reply in (*mine, theirs)}) == 1


def test_one_key_has_a_limit_and_the_others_their_own(keyed: Client) -> None:
    asked = {"prompt": "ab", "max_tokens": 2}
    over = keyed.post("/v1/completions", {**asked, "n": 4}, **bearer(KEY))
    assert (over.status, over.error["type"], over.error["code"]) == (429, "rate_limit_error", "rate_limit_exceeded")
    assert int(over.headers["retry-after"]) >= 1

    state = keyed.app.state.server
    owner = state.keys.owner(f"Bearer {KEY}".encode())
    state.per_key.enter(owner, 3)
    statuses = [keyed.post("/v1/completions", asked, **bearer(key)).status for key in (KEY, OTHER)]
    state.per_key.leave(owner, 3)
    assert statuses == [429, 200]
    assert keyed.post("/v1/completions", asked, **bearer(KEY)).status == 200
    assert state.per_key._under_way == {}


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "", "10.0.0.1", "[::2]:80", "a b", "[:"],
)
def test_a_name_made_to_point_here_is_refused(served: Client, host: str) -> None:
    for path in ("/v1/models", "/health", "/ready", "/metrics"):
        reply = served.get(path, host=host)
        assert (reply.status, reply.error["code"]) == (400, "invalid_host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:1", "[::1]:8000"])
def test_own_names_are_fine(served: Client, host: str) -> None:
    assert served.get("/version", host=host).status == 200


def test_a_server_for_others_answers_to_addresses(open_server: Serve) -> None:
    client = open_server(by_address=True, hosts=frozenset({"box.lan"}))
    assert [client.get("/version", host=h).status for h in ("10.0.0.1:8000", "[fe80::1]", "box.lan")] == [200] * 3
    assert client.get("/version", host="evil.example").status == 400


def test_pages_of_others_are_refused(served: Client) -> None:
    for origin in ("https://evil.example", "null", "http://127.0.0.1:9000", "http://evil.example/127.0.0.1:8000"):
        reply = served.post("/v1/completions", {"prompt": "a"}, origin=origin)
        assert (reply.status, reply.error["code"]) == (400, "invalid_origin")
        assert "access-control-allow-origin" not in reply.headers
    assert served.get("/version", origin="http://127.0.0.1:8000").status == 200


def test_cors_only_where_asked_for(served: Client, open_server: Serve) -> None:
    page = "https://page.example"
    preflight = {
        "origin": page,
        "access_control_request_method": "POST",
        "access_control_request_headers": "content-type",
    }

    def asks(client: Client, **headers: str) -> Any:
        return asyncio.run(
            call(client.app, "OPTIONS", "/v1/completions", None, {k.replace("_", "-"): v for k, v in headers.items()})
        )

    assert "access-control-allow-origin" not in asks(served, **preflight).headers
    client = open_server(origins=(page,), keys=Keys([KEY]))
    assert asks(client, **preflight).headers["access-control-allow-origin"] == page
    reply = client.get("/version", origin=page, **bearer(KEY))
    assert reply.headers["access-control-allow-origin"] == page
    assert (
        client.get("/version", origin=page).headers["access-control-allow-origin"] == page
    )  # so that it can be read why
    assert "access-control-allow-origin" not in asks(client, **{**preflight, "origin": "https://evil.example"}).headers


def test_until_the_model_is_loaded(load: Any) -> None:
    state = ServerState("tiny")
    client = Client(create_app(state))
    assert client.get("/health").json == {"status": "loading"}
    for reply in (client.get("/ready"), client.get("/v1/models"), client.complete("a"), client.get("/metrics")):
        assert (reply.status, reply.error["code"]) == (503, "loading")
        assert int(reply.headers["retry-after"]) >= 1
    from foredraft.serving.model import Serving

    model: LanguageModel = load()
    state.served = Serving(model.runtime, "tiny")
    assert (client.get("/health").json, client.get("/ready").status) == ({"status": "ok"}, 200)
    assert client.complete("ab", max_tokens=1).status == 200
    state.draining = True
    state.served.drain(0.0)
    late = client.complete("ab", max_tokens=1)
    assert (late.status, late.error["code"]) == (503, "draining")
    assert int(late.headers["retry-after"]) >= 1
    assert client.get("/ready").status == 503
    assert client.get("/health").json == {"status": "draining"}
    state.served.close()


def test_nothing_is_fetched_for_the_page(served: Client) -> None:
    assert [served.get(path).status for path in ("/docs", "/redoc")] == [404, 404]


def test_the_page_runs_its_own_scripts_only(tmp_path: Any) -> None:
    import base64
    import hashlib

    from fastapi import FastAPI

    from foredraft.server.watch.page import add_page

    page = tmp_path / "page.html"
    page.write_text("<style>a{}</style><script>let a = 1;</script><p>hi")
    app = FastAPI()
    add_page(app, tmp_path / "none.html")
    assert Client(app).get("/").status == 404
    add_page(app, page)
    reply = Client(app).get("/")
    digest = base64.b64encode(hashlib.sha256(b"let a = 1;").digest()).decode()
    policy = reply.headers["content-security-policy"]
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert reply.body == page.read_bytes()


def test_the_page_needs_nothing_from_elsewhere(served: Client) -> None:
    reply = served.get("/")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    text = reply.body.decode()
    assert set(re.findall(r"[a-z]+://[\w./]*", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert re.findall(r"(?:src|href)=.(?!data:)|url\(|@import|innerHTML|insertAdjacentHTML|document\.write", text) == []
    assert "require-trusted-types-for 'script'" in reply.headers["content-security-policy"]
    assert served.get("/", host="evil.example").status == 400

"""A tiny model behind a server, and the same model alone to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import foredraft
from foredraft import LanguageModel
from tests.server.client import Client, Serve
from tests.tiny import make_chat_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def load(tiny: Path, cache: Path) -> Callable[..., LanguageModel]:
    def make(**options: Any) -> LanguageModel:
        return foredraft.load(tiny, **{"dtype": "f64", "cache": cache, "offline": True, **options})

    return make


@pytest.fixture(scope="session")
def alone(load: Callable[..., LanguageModel]) -> LanguageModel:
    """The model as the library has it."""
    return load()


@pytest.fixture(scope="session")
def open_server(load: Callable[..., LanguageModel]) -> Iterator[Serve]:
    """Make a server; options of the model are in ``model``, those of the engine in ``engine``."""
    pytest.importorskip("fastapi", reason="the server needs the serve extra")
    pytest.importorskip("prometheus_client", reason="the server needs the serve extra")
    from foredraft.server.app import create_app
    from foredraft.server.state import ServerState
    from foredraft.serving.model import Serving

    opened: list[Serving] = []

    def make(
        model: LanguageModel | None = None, engine: dict[str, Any] | None = None, headers: Any = None, **state: Any
    ) -> Client:
        serving = Serving((model or load()).runtime, "tiny", **(engine or {}))
        opened.append(serving)
        made = ServerState("tiny", **state)
        made.served = serving
        return Client(create_app(made), headers or {})

    yield make
    for serving in opened:
        serving.close()
        assert serving.service.idle
        now = serving.service.snapshot()
        assert now.free_slots == now.slots


@pytest.fixture(scope="session")
def served(open_server: Serve) -> Client:
    """One server for whoever only asks."""
    return open_server()

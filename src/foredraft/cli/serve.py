"""``foredraft serve``: OpenAI's HTTP API over one model."""

from __future__ import annotations

import argparse
import ipaddress
import json
from typing import TYPE_CHECKING, Any, Final

from foredraft.cli.arguments import arguments
from foredraft.cli.arguments.files import read_keys
from foredraft.cli.arguments.loading import load_model
from foredraft.cli.arguments.parser import Parser, number, one_of, whole
from foredraft.cli.terminal.console import Console
from foredraft.errors import OptionError
from foredraft.models.hub.registry import DEFAULT_MODEL

if TYPE_CHECKING:
    from foredraft.server.backend import Served
    from foredraft.server.state import ServerState

INSTALL: Final = "pip install 'foredraft[serve]'"
HOST: Final = "127.0.0.1"
PORT: Final = 8000
KEY: Final = "FOREDRAFT_API_KEY"
_SHORTEST_KEY: Final = 8
_MAX_SLOTS: Final = 256
_MAX_QUEUE: Final = 65536
_MAX_SECONDS: Final = 86400.0
_EPILOG: Final = f"""\
examples:
  foredraft serve
  foredraft serve model.gguf --port 8080 --slots 4
  {KEY}=... foredraft serve --host 0.0.0.0

SIGTERM or Ctrl-C lets answers finish; a second one ends at once. ${KEY} is a key too.
"""


def add_arguments(parser: Parser) -> None:
    """Add the verb's options."""
    parser.epilog = _EPILOG
    parser.usage = "foredraft serve [MODEL] [options]"
    parser.add_argument("served", metavar="MODEL", nargs="?", help="the same as --model")
    arguments.add_model(parser)
    parser.add_argument(
        "--cache-share", action="store_true", help="a cache_scope is also copied from by others, whatever their key"
    )
    group = parser.add_argument_group("address")
    group.add_argument("--host", metavar="H", default=HOST, help=f"name or address to listen at (default {HOST})")
    group.add_argument("--port", metavar="N", type=whole, default=PORT, help=f"default {PORT}; 0 is any that is free")
    group.add_argument("--served-name", metavar="NAME", help="what requests call the model")
    group = parser.add_argument_group("who may ask")
    group.add_argument(
        "--api-key", metavar="KEY", action="append", help="a key that requests must have; again for more"
    )
    group.add_argument("--api-key-file", metavar="FILE", help="keys, a line each: others cannot see them in a list")
    group.add_argument(
        "--insecure", action="store_true", help="no key, and yet another address than this machine's own"
    )
    group.add_argument(
        "--cors-origin", metavar="URL", action="append", help="let pages of this origin ask (default none)"
    )
    group = parser.add_argument_group("limits")
    group.add_argument("--slots", metavar="N", type=whole, default=8, help="answers written at a time (default 8)")
    group.add_argument("--queue", metavar="N", type=whole, default=256, help="answers that may wait (default 256)")
    group.add_argument("--per-key", metavar="N", type=whole, help="answers that one key may have under way")
    group.add_argument("--max-body", metavar="MIB", type=whole, default=4, help="largest request (default 4)")
    group.add_argument(
        "--drain-seconds", metavar="S", type=number, default=30.0, help="for answers to finish at the end (default 30)"
    )
    group = parser.add_argument_group("metrics")
    group.add_argument(
        "--metrics-compat", metavar="NAME", type=one_of("vllm"), help="vllm: the same under vLLM's names too"
    )
    arguments.add_machine(parser)
    arguments.add_output(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Serve until a signal ends it. The address is taken before a model is loaded."""
    if args.served is not None:
        if args.model != DEFAULT_MODEL:
            raise OptionError("a model and --model are both there: give one")
        args.model = args.served
    state = _server_state(args, console)
    from foredraft.server.run import listen, serve

    listener = listen(args.host, args.port)
    port = listener.getsockname()[1]

    def load() -> Served:
        from foredraft.serving.model import Serving

        return Serving(load_model(args, console).runtime, state.name, args.slots, args.queue, args.rule or "auto")

    def loaded(served: Served) -> None:
        console.print(_hello(args, served, port, keyed=bool(state.keys)))

    with listener:
        return serve(state, listener, load, loaded, args.drain_seconds, console.remark)


def _server_state(args: argparse.Namespace, console: Console) -> ServerState:
    """Return the server's state, every option checked. Raises OptionError."""
    try:
        from foredraft.server.keys import Keys
        from foredraft.server.limits import Limits
        from foredraft.server.state import ServerState
    except ModuleNotFoundError as error:
        raise OptionError(
            f"serve needs {(error.name or '').partition('.')[0]}, which is not installed: {INSTALL}"
        ) from error
    for name, least, most in (
        ("slots", 1, _MAX_SLOTS), ("queue", 1, _MAX_QUEUE), ("port", 0, 65535), ("per_key", 1, _MAX_QUEUE),
        ("max_body", 1, 1024), ("drain_seconds", 0, _MAX_SECONDS),
    ):  # fmt: skip
        value = getattr(args, name)
        if value is not None and not least <= value <= most:
            raise OptionError(f"--{name.replace('_', '-')} must be between {least:g} and {most:g}, not {value}")
    keys = _keys(args, console)
    local = _is_local(args.host)
    if not local and not keys and not args.insecure:
        raise OptionError(f"--host {args.host} lets others in: give --api-key, or --insecure")
    return ServerState(
        name=args.served_name or _name(args.model),
        keys=Keys(keys),
        limits=Limits(body=args.max_body << 20, per_key=args.per_key),
        hosts=frozenset({args.host.lower()}),
        by_address=not local,
        origins=tuple(_origin(origin) for origin in args.cors_origin or ()),
        vllm=args.metrics_compat == "vllm",
        report=console.say,
    )


def _keys(args: argparse.Namespace, console: Console) -> list[str]:
    keys = list(args.api_key or ())
    if args.api_key_file is not None:
        keys += read_keys(args.api_key_file)
    if console.environment.get(KEY):
        keys.append(console.environment[KEY])
    for key in keys:
        if len(key) < _SHORTEST_KEY or not key.isprintable() or not key.isascii() or " " in key:
            raise OptionError(f"an API key has at least {_SHORTEST_KEY} printable ASCII characters and no spaces")
    return keys


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _origin(text: str) -> str:
    scheme, mark, rest = text.partition("://")
    if text != "*" and (scheme not in ("http", "https") or not mark or not rest or "/" in rest):
        raise OptionError(f"--cors-origin is like https://example.org, or *, and {text!r:.60} is not")
    return text


def _name(model: str) -> str:
    from foredraft.serving.model import served_name

    return served_name(model)


def _hello(args: argparse.Namespace, served: Served, port: int, *, keyed: bool) -> str:
    """Return the line that says where the server is, and how to ask it."""
    host = f"[{args.host}]" if ":" in args.host else args.host
    url = f"http://{host}:{port}"
    facts: dict[str, Any] = {"url": f"{url}/v1", "model": served.name, "context": served.context, **served.facts}
    if args.json:
        return json.dumps({**facts, "slots": args.slots, "queue": args.queue})
    key = " -H 'Authorization: Bearer KEY'" if keyed else ""
    ask = f"""curl {url}/v1/completions -H 'Content-Type: application/json'{key} -d '{{"prompt": "Once"}}'"""
    what = f"{served.name} · {facts['tier']} {facts['dtype']} · {facts['drafter']} · {args.slots} slots"
    return f"serving {what} at {facts['url']} · ask it: {ask}"

"""The page at ``/``: one file without anything from elsewhere, under a policy that lets nothing else run."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Final

from fastapi import FastAPI
from starlette.responses import Response

PAGE: Final = Path(__file__).with_name("page.html")
_INLINE: Final = {
    "script-src": re.compile(rb"<script>(.*?)</script>", re.S),
    "style-src": re.compile(rb"<style>(.*?)</style>", re.S),
}


def add_page(app: FastAPI, path: Path = PAGE) -> None:
    """Serve the page, where there is one."""
    if not path.is_file():
        return
    page = path.read_bytes()
    headers = {
        "Content-Security-Policy": policy(page),
        "Cache-Control": "no-cache",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }

    async def index() -> Response:
        return Response(page, 200, headers, "text/html; charset=utf-8")

    app.add_api_route("/", index, methods=["GET"], include_in_schema=False)


def policy(page: bytes) -> str:
    """Return a content security policy under which the page's own scripts and styles run, by their hashes."""
    rules = [
        "default-src 'none'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "img-src data:",
        "require-trusted-types-for 'script'",  # no text becomes HTML, not even by a mistake of the page's
        "trusted-types 'none'",
    ]
    for rule, inline in _INLINE.items():
        hashes = [
            f"'sha256-{base64.b64encode(hashlib.sha256(found).digest()).decode()}'" for found in inline.findall(page)
        ]
        rules.append(f"{rule} {' '.join(hashes) or chr(39) + 'none' + chr(39)}")
    return "; ".join(rules)

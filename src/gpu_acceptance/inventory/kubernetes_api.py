"""What a pod may ask of the Kubernetes API: by its service account, over TLS, and only by GET.

Not by urllib: it follows redirects with the token, and goes through the proxies that the environment names.
"""

import json
import os
import re
import ssl
from collections.abc import Callable, Mapping
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from gpu_acceptance.inventory.answer import Answer, Missing, Why, read_text

T = TypeVar("T")

NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")  # a DNS subdomain, as the name of every node and every pod
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where the kubelet puts it
_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
_TOKEN = re.compile(r"[\w.~+/=-]+", re.ASCII)
_TIMEOUT_S = 10.0
_MOST_BYTES = 16 << 20  # a node has at most some hundred pods
_MOST_SAID = 400  # characters: a reason names an account, a namespace and an object
_PAGE = 100  # objects of one answer: a node is some 30 kB
_MOST_PAGES = 200


def is_in_pod(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the kubelet started this process: it names the API to every container."""
    return bool(environ.get(_HOST))


def get(path: str, environ: Mapping[str, str] = os.environ) -> Answer[dict[str, Any]]:
    """The object at this path, `/api/v1/nodes/node-01`, or why there is none."""
    token = read_text(ACCOUNT / "token")
    if isinstance(token, Missing):
        return token
    host, port = environ.get(_HOST, ""), environ.get(_PORT, "")
    if not (_TOKEN.fullmatch(token) and host and port.isdecimal()):
        return Missing(Why.UNREADABLE, f"{_HOST}={host!r}, {_PORT}={port!r}, or the token is none"[:200])
    try:
        return _answered(path, *_fetched(HTTPSConnection(host, int(port), timeout=_TIMEOUT_S, context=_trust()), path, token))
    except (OSError, HTTPException, ValueError, RecursionError) as error:
        return Missing(Why.UNREADABLE, f"GET {path}: {type(error).__name__}: {error}"[:200])


def items(path: str, environ: Mapping[str, str] = os.environ, **query: str) -> Answer[list[dict[str, Any]]]:
    """All that the list at this path holds, of at most 20,000 objects: `items("/api/v1/nodes")`."""
    found: list[dict[str, Any]] = []
    going_on = {"limit": str(_PAGE)}
    for _ in range(_MOST_PAGES):
        page = parsed(get(f"{path}?{urlencode({**query, **going_on})}", environ), _page)
        if isinstance(page, Missing):
            return page
        found += page[0]
        if not page[1]:
            return found
        going_on["continue"] = page[1]
    return Missing(Why.UNREADABLE, f"GET {path}: more than {_MOST_PAGES} pages"[:200])


def _page(told: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """Objects, and where the list goes on."""
    found, after = told["items"], told["metadata"].get("continue") or ""
    if not (isinstance(found, list) and isinstance(after, str)):
        raise ValueError("no list")
    return found, after


def parsed(told: Answer[dict[str, Any]], parse: Callable[[dict[str, Any]], T]) -> Answer[T]:
    """What `parse` makes of an answer that may be of any form."""
    if isinstance(told, Missing):
        return told
    try:
        return parse(told)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return Missing(Why.UNREADABLE, f"{parse.__name__.strip('_')} of the API: {type(error).__name__}: {error}"[:200])


def _trust() -> ssl.SSLContext:
    """The cluster's own authority, and no other."""
    return ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))


def _fetched(connection: HTTPSConnection, path: str, token: str) -> tuple[int, bytes]:
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}", "Accept": "application/json"})
        response = connection.getresponse()
        return response.status, response.read(_MOST_BYTES + 1)
    finally:
        connection.close()


def _answered(path: str, status: int, body: bytes) -> Answer[dict[str, Any]]:
    if status != 200 or len(body) > _MOST_BYTES:
        why = Why.NOT_PERMITTED if status in {401, 403} else Why.UNREADABLE
        return Missing(why, f"GET {path.partition('?')[0]}: status {status}, {_said(body)}"[:_MOST_SAID])
    found = json.loads(body)
    return found if isinstance(found, dict) else Missing(Why.UNREADABLE, f"GET {path}: no object"[:200])


def _said(body: bytes) -> str:
    """The reason in the API's own words, where it gives one: who may not do what, and where."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        told = None
    message = told.get("message") if isinstance(told, dict) else None
    return repr(message) if isinstance(message, str) and message else f"{len(body)} bytes"

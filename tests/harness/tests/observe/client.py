"""Asks a router for everything that only reads, with the Python client, and prints the replies as JSON.

    client.py ADDRESS [TOKEN]

Fails if a reply does not have the type that the client says.
"""

import json
import sys
from pathlib import Path
from typing import Dict, List, Literal, Union, get_args, get_origin, get_type_hints

import brickmoon

DOCUMENT = Path(brickmoon.__file__).parents[3] / "docs/openapi.json"


def check(value, kind, where):
    """Checks a value, and all values within it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if hasattr(kind, "__required_keys__"):
        fields = get_type_hints(kind)
        assert isinstance(value, dict), f"{where}: {value!r}"
        assert kind.__required_keys__ <= value.keys() <= fields.keys(), f"{where}: {sorted(value)}"
        for name, inner in value.items():
            check(inner, fields[name], f"{where}.{name}")
    elif origin is Union:
        if value is not None:
            check(value, arguments[0], where)
    elif origin is Literal:
        assert value in arguments, f"{where}: {value!r}"
    elif origin in (list, List):
        assert isinstance(value, list), f"{where}: {value!r}"
        for inner in value:
            check(inner, arguments[0], f"{where}[]")
    elif origin in (dict, Dict):
        assert isinstance(value, dict), f"{where}: {value!r}"
        for name, inner in value.items():
            check(inner, arguments[1], f"{where}.{name}")
    else:
        # `type`, since a bool is an int.
        assert type(value) is kind, f"{where}: {value!r}"


def requests():
    """The paths that only read, with the methods of the client."""
    for path, methods in json.loads(DOCUMENT.read_text())["paths"].items():
        if "get" in methods and "{" not in path:
            yield path, methods["get"]["operationId"]


router = brickmoon.Router(*sys.argv[1:])
replies = {}
for path, name in requests():
    method = getattr(router, name)
    reply = method(to="10.9.9.9") if name == "explain" else method()
    check(reply, get_type_hints(method)["return"], name)
    replies[path] = reply
assert len(router.routes(address="10.9.9.9")["routes"]) == 1
assert next(brickmoon.watch(router.status))["pid"] == replies["/v1/status"]["pid"]

try:
    router.routes(address="nowhere")
    raise SystemExit("an address that is none was accepted")
except brickmoon.Error as error:
    assert error.status == 400, error.status
    replies["error"] = {"message": error.message, "hint": error.hint}

try:
    brickmoon.Router("/nowhere/api.sock").status()
    raise SystemExit("a socket that does not exist has answered")
except FileNotFoundError as error:
    assert error.filename == "/nowhere/api.sock", error

print(json.dumps(replies))

"""The settings of one peer, from four layers: flag, then PEER_* variable, then peerd.toml, then default.

One function reads a setting, whichever layer it comes from, and the setting remembers its layer. So an error can say
"port 7400 (from PEER_PORT)", and for a malformed file it names the file, the line and the key.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from overlay.identity import Address, IdentityError, parse_address
from peerd.errors import Exit, PeerError
from peerd.words import parse_span
from protocols.rights.quotas import Quotas
from protocols.sharing.capacity import Capacities

DEFAULT_PORT: Final = 7400
HTTP_PORT_OFFSET: Final = 1000
PORT_MAX: Final = 65535
NAME_CHARS_MAX: Final = 64
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("console", "json")
BANDWIDTH_MIN: Final = 8000  # Bytes a second: with less, peers do not hear each other in time.
SPARK: Final = ("auto", "off", "warm")
# Variables that say where to look, not how to run; they are read before the configuration.
_LOCATING_VARIABLES: Final = ("PEER_DATA_DIR", "PEER_CONFIG", "PEER_CLIENT_TOKEN")
QUOTAS: Final = Quotas()


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of one peer; `origins` says which layer gave each value that is not a default."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    advertise: str | None = None
    advertise_seed: Address | None = None
    seeds: tuple[Address, ...] = ()
    name: str = "local"
    log_level: str = "info"
    log_format: str = "console"
    http_host: str = "127.0.0.1"
    http_port: int | None = None
    found: bool = False
    token_file: Path | None = None
    spark: str = "auto"  # auto: with the first query that needs it; off: never; warm: with the peer.
    spark_master: str = "local"
    spark_memory: int = 420  # Megabytes of Java's heap.
    # What this peer may use of its machine; None: all there is.
    cpu_share: float | None = None  # Of its cores.
    uplink: float | None = None  # Bytes a second.
    downlink: float | None = None
    host_nothing: bool = False  # It runs no parts of other peers' queries.
    delays: tuple[tuple[Address, float], ...] = ()  # Extra milliseconds to each address, for demonstrations and tests.
    # What each client may take of this peer; 0 is no limit.
    quota_connections: int = QUOTAS.connections
    quota_streams: int = QUOTAS.streams
    quota_subscriptions: int = QUOTAS.subscriptions
    quota_queries: int = QUOTAS.queries
    quota_state_rows: int = QUOTAS.state_rows
    quota_tuples_per_s: int = QUOTAS.tuples_per_s
    quota_bytes_per_s: int = QUOTAS.bytes_per_s
    quota_peer_subgraphs: int = QUOTAS.peer_subgraphs
    quota_peer_joins: int = QUOTAS.peer_joins
    quota_peer_subscriptions: int = QUOTAS.peer_subscriptions
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def quotas(self) -> Quotas:
        names = [each.name for each in fields(Quotas)]
        return Quotas(**{name: getattr(self, f"quota_{name}") for name in names})

    def capacities(self, cores: int) -> Capacities:
        return Capacities(self.cpu_share, self.uplink, self.downlink, not self.host_nothing, cores)

    def http_port_for(self, port: int) -> int:
        """The port of /healthz and /metrics: as set (0 is off), else 1000 above the peer's own, or below a high one."""
        if self.http_port is not None:
            return self.http_port
        return port + HTTP_PORT_OFFSET if port + HTTP_PORT_OFFSET <= PORT_MAX else port - HTTP_PORT_OFFSET

    def origin(self, key: str) -> str:
        return self.origins.get(key, "the default")


def load_config(
    file: Path | None, environ: Mapping[str, str], flags: Mapping[str, object], *, must_exist: bool = False
) -> Config:
    """Read the layers, the strongest last; raise PeerError (exit code 2) at the first value that does not fit."""
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    if file is not None:
        for key, (value, line) in _read_file(file, must_exist=must_exist).items():
            values[key], origins[key] = value, f"{file}, line {line}"
    for key in KEYS:
        variable = f"PEER_{key.upper()}"
        # A container file may leave a variable blank; it then counts as unset.
        if text := environ.get(variable):
            values[key], origins[key] = _read_value(key, text, where=variable), variable
    for key, raw in flags.items():
        if raw is not None and raw != ():
            flag = f"--{key.replace('_', '-')}"
            values[key], origins[key] = _read_value(key, raw, where=flag), flag
    settings: dict[str, Any] = values
    return Config(**settings, origins=origins)


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each PEER_* variable that looks like a misspelt setting; others are ignored."""
    known = [f"PEER_{key.upper()}" for key in KEYS] + list(_LOCATING_VARIABLES)
    sentences = []
    for variable in sorted(environ):
        if not variable.startswith("PEER_") or variable in known:
            continue
        if nearest := difflib.get_close_matches(variable, known, n=1, cutoff=0.8):
            sentences.append(f"{variable} is not a setting; did you mean {nearest[0]}?")
    return sentences


def write_settings(file: Path, settings: Mapping[str, object], note: str = "") -> None:
    """Write settings as a configuration file, so that later starts need no flags."""
    lines = [f"# Settings of this peer. A PEER_* variable or a flag wins over what is written here. {note}".rstrip()]
    for key, value in settings.items():
        lines.append(f"{key} = {_toml(value)}")
    file.write_text("\n".join(lines) + "\n")


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case tuple() | list():
            return "[" + ", ".join(_toml(item) for item in value) + "]"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _read_file(file: Path, *, must_exist: bool) -> dict[str, tuple[object, int]]:
    """The values of the file by key, each with its line."""
    try:
        text = file.read_text()
    except (FileNotFoundError, NotADirectoryError):
        if not must_exist:
            return {}
        raise PeerError(f'there is no configuration file "{file}"', exit_code=Exit.MISUSE) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise PeerError(f'cannot read "{file}": {reason}', exit_code=Exit.MISUSE) from error
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _malformed(file, text, str(error)) from error
    values = {}
    for key, value in raw.items():
        line = _line_of(text, key)
        if key not in KEYS:
            where = f"{file}, line {line}, key {_quote(key)}"
            raise PeerError(f"{where}: there is no such setting", hint=_nearest_key(key), exit_code=Exit.MISUSE)
        values[key] = (_read_value(key, value, where=f"{file}, line {line}, key {_quote(key)}"), line)
    return values


def _malformed(file: Path, text: str, reason: str) -> PeerError:
    """Say where the file stops being TOML. The parser gives line and column at the end of its message."""
    place = re.search(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$", reason)
    lines = text.splitlines() or [""]
    line = int(place[1]) if place and place[1] else len(lines)
    sentence = reason[: place.start()] if place else reason
    content = lines[line - 1] if line <= len(lines) else ""
    key = re.match(r"\s*[\"']?([\w-]+)", content)
    where = f"{file}, line {line}" + (f", key {_quote(key[1])}" if key else "")
    column = f", column {place[2]}" if place and place[2] else ""
    return PeerError(
        f"{where}: this is not TOML: {sentence[:1].lower()}{sentence[1:]}",
        detail=f"Line {line}{column} reads: {content.strip() or '(nothing)'}",
        hint='Write one setting per line, text in quotes: port = 7400, host = "127.0.0.1".',
        exit_code=Exit.MISUSE,
    )


def _line_of(text: str, key: str) -> int:
    """The line on which a top-level key (or a table of that name) begins."""
    begins = re.compile(rf"\s*\[*\s*[\"']?{re.escape(key)}[\"']?\s*[=.\]]")
    for number, line in enumerate(text.splitlines(), start=1):
        if begins.match(line):
            return number
    return 1


def _nearest_key(key: str) -> str:
    nearest = difflib.get_close_matches(key.lower().replace("-", "_"), KEYS, n=1, cutoff=0.5)
    names = f"The settings are {', '.join(KEYS)}."
    return f"Did you mean {_quote(nearest[0])}? {names}" if nearest else names


def _read_value(key: str, raw: object, *, where: str) -> object:
    try:
        return _READERS[key](raw)
    except ValueError as error:
        shown = f'"{raw}"' if isinstance(raw, str) else str(raw)
        raise PeerError(f"{where}: {error}, not {shown}", exit_code=Exit.MISUSE) from error


def _quote(text: str) -> str:
    return f'"{text}"'


def _text(raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError("it must be a text")
    return raw.strip()


def _name(raw: object) -> str:
    if not isinstance(raw, str) or not 0 < len(raw) <= NAME_CHARS_MAX or not raw.isprintable():
        raise ValueError(f"it must be a name of 1 to {NAME_CHARS_MAX} printable characters")
    return raw


def _port(raw: object) -> int:
    text = str(raw)
    if isinstance(raw, bool) or not text.isascii() or not text.isdigit() or int(text) > PORT_MAX:
        raise ValueError(f"it must be a port, a number from 0 to {PORT_MAX}")
    return int(text)


def _address(raw: object) -> Address:
    try:
        return parse_address(_text(raw), DEFAULT_PORT)
    except IdentityError:
        raise ValueError("it must be an address, host:port or [ipv6]:port") from None


def _addresses(raw: object) -> tuple[Address, ...]:
    match raw:
        case str():
            return tuple(_address(item) for item in re.split(r"[\s,]+", raw.strip()))
        case list() | tuple():
            return tuple(_address(item) for item in raw)
    raise ValueError('it must be a list of addresses, like ["10.0.0.5:7400"]')


def _delays(raw: object) -> tuple[tuple[Address, float], ...]:
    match raw:
        case str():
            return tuple(_delay(item) for item in re.split(r"[\s,]+", raw.strip()))
        case list() | tuple():
            return tuple(_delay(item) for item in raw)
    raise ValueError('it must be a list of addresses with delays, like ["10.0.0.5:7400=20ms"]')


def _delay(raw: object) -> tuple[Address, float]:
    address, _, delay = _text(raw).partition("=")
    try:
        return _address(address), parse_span(delay) * 1000
    except ValueError:
        raise ValueError("it must be an address and a delay, like 10.0.0.5:7400=20ms") from None


def _flag(raw: object) -> bool:
    answers = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    answer = answers.get(str(raw).lower())
    if answer is None:
        raise ValueError("it must be true or false")
    return answer


def _path(raw: object) -> Path:
    return Path(_text(raw)).expanduser()


def _memory(raw: object) -> int:
    """Megabytes."""
    match = re.fullmatch(r"([1-9]\d{0,6})(m|g|)", str(raw).lower())
    if match is None:
        raise ValueError("it must be an amount of memory, like 512m or 2g")
    return int(match[1]) * (1024 if match[2] == "g" else 1)


def _amount(raw: object) -> int:
    text = str(raw).replace("_", "")
    if isinstance(raw, bool) or not text.isascii() or not text.isdigit():
        raise ValueError("it must be a number, or 0 for no limit")
    return int(text)


def _share(raw: object) -> float:
    """A share of the cores."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)(%?)", str(raw).strip())
    share = float(match[1]) / (100 if match[2] else 1) if match is not None and not isinstance(raw, bool) else 0.0
    if not 0 < share <= 1:
        raise ValueError("it must be a share of the cores above 0 and at most 1, like 0.8 or 80%")
    return share


def _bandwidth(raw: object) -> float:
    """Bytes a second."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg])bit(?:/s)?", str(raw).strip().lower())
    rate = float(match[1]) * 1000 ** ("kmg".index(match[2]) + 1) / 8 if match is not None else 0.0
    if rate < BANDWIDTH_MIN:
        least = f"{BANDWIDTH_MIN * 8 // 1000} kbit or more"
        raise ValueError(f"it must be bits per second, {least}, like 500kbit, 1mbit or 2.5gbit")
    return rate


def _one_of(choices: tuple[str, ...]) -> Callable[[object], str]:
    def read(raw: object) -> str:
        if not isinstance(raw, str) or raw.lower() not in choices:
            raise ValueError(f"it must be one of {', '.join(choices)}")
        return raw.lower()

    return read


_READERS: Final[dict[str, Callable[[object], object]]] = {
    "host": _text,
    "port": _port,
    "advertise": _text,
    "advertise_seed": _address,
    "seeds": _addresses,
    "name": _name,
    "log_level": _one_of(LOG_LEVELS),
    "log_format": _one_of(LOG_FORMATS),
    "http_host": _text,
    "http_port": _port,
    "found": _flag,
    "token_file": _path,
    "spark": _one_of(SPARK),
    "spark_master": _text,
    "spark_memory": _memory,
    "cpu_share": _share,
    "uplink": _bandwidth,
    "downlink": _bandwidth,
    "host_nothing": _flag,
    "delays": _delays,
    **{f"quota_{each.name}": _amount for each in fields(Quotas)},
}
KEYS: Final = tuple(item.name for item in fields(Config) if item.name != "origins")
assert list(_READERS) == list(KEYS)

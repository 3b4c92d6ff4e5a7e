"""The daemon's interfaces: the control socket for commands, and /healthz and /metrics on loopback HTTP.

Everything is JSON. An error is {"error", "detail", "hint", "code"}, where code is the exit code of the command. The
socket file is 0600: whoever may open it may do everything that this peer may, unless they present a client's token.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import structlog
from aiohttp import web

from overlay.identity import format_address
from overlay.members import STATUSES
from overlay.overlay import Member, Overlay
from overlay.understanding import advice, meaning
from peerd import __version__
from peerd.addresses import cannot_listen
from peerd.errors import Exit, PeerError
from peerd.meter import shown
from protocols.ids import ID_BYTES
from protocols.versions import differences, in_words

if TYPE_CHECKING:
    from peerd.service import Daemon

PINGS_MAX: Final = 100
PING_GAP_S: Final = 0.02
SHUTDOWN_S: Final = 1.0
LEAVING_NEWS_S: Final = 0.5
RIGHTS_KNOWN_S: Final = 10.0  # How long a command waits until the peer knows who may do what.
_HTTP_STATUS: Final = {Exit.MISUSE: 400, Exit.NOT_FOUND: 404, Exit.TIMEOUT: 504, Exit.FAILED: 409}

log = structlog.get_logger("peerd")


class Control:
    """Serves one daemon on its control socket and its HTTP port."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._runners: list[web.AppRunner] = []

    async def open(self) -> str | None:
        """Open both; returns the HTTP address, or None if HTTP is off."""
        data = self._daemon.data
        data.prepare_socket_folder()
        control = web.Application(middlewares=[_answer_errors])
        control.add_routes(
            [
                web.get("/status", self._status),
                web.get("/members", self._members),
                web.get("/rtt", self._rtt),
                web.get("/token", self._token),
                web.post("/leave", self._leave),
                web.get("/leave", self._leaving),
                web.post("/force-leave", self._force_leave),
                web.post("/expel", self._expel),
                web.get("/expel", self._expelling),
                web.post("/stop", self._stop),
            ]
        )
        runner = await self._runner(control)
        previous = os.umask(0o177)
        try:
            await web.UnixSite(runner, str(data.socket_path)).start()
        finally:
            os.umask(previous)
        return await self._open_http()

    async def _open_http(self) -> str | None:
        config, port = self._daemon.config, self._daemon.http_port
        if port is None:
            return None
        health = web.Application()
        health.add_routes([web.get("/healthz", self._healthz), web.get("/metrics", self._metrics_text)])
        runner = await self._runner(health)
        try:
            await web.TCPSite(runner, config.http_host, port).start()
        except OSError as error:
            origin = config.origins.get("http_port", "the default, the peer's port + 1000")
            raise cannot_listen(error, config.http_host, port, key="http_port", origin=origin) from error
        return format_address(runner.addresses[0])

    async def _runner(self, application: web.Application) -> web.AppRunner:
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_S, handle_signals=False)
        await runner.setup()
        self._runners.append(runner)
        return runner

    async def close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()

    # The handlers.

    async def _status(self, _request: web.Request) -> web.Response:
        daemon = self._daemon
        counts = Counter(member.status for member in daemon.overlay.members())
        clock, versions = daemon.overlay.clock(), daemon.overlay.understanding.versions
        return web.json_response(
            {
                "peer_id": daemon.overlay.peer_id.hex(),
                "network": daemon.overlay.network.name,
                "state": daemon.state,
                "trouble": daemon.trouble,
                "refused": daemon.overlay.understanding.trouble(),
                "generation": daemon.overlay.network.generation,
                "behind": [peer.hex() for peer in daemon.overlay.membership.behind()],
                "address": format_address(daemon.overlay.address),
                **{status: counts[status] for status in STATUSES},
                "clock_offset_ms": clock.offset_ms,
                "clock_peers": clock.peers,
                "version": __version__,
                "speaks": {family: [span.oldest, span.newest] for family, span in versions.items()},
                "started_at": daemon.started_at,
                "pid": os.getpid(),
                "http": daemon.http_address,
                "data_dir": str(daemon.data.path.absolute()),
                "journal_bytes": daemon.driver.journal_bytes,
                "journal_kept_bytes": daemon.driver.journal_kept_bytes,
                "spark": daemon.driver.engines.status(),
                "capacity": shown(daemon.driver.capacity),
            }
        )

    async def _members(self, request: web.Request) -> web.Response:
        overlay = self._daemon.overlay
        members = await overlay.crawl() if request.query.get("crawl") == "1" else overlay.members()
        order = {status: place for place, status in enumerate(STATUSES)}
        members = sorted(members, key=lambda member: (order[member.status], member.peer_id))
        return web.json_response([_member_row(member, overlay) for member in members])

    async def _rtt(self, request: web.Request) -> web.Response:
        """Round trips: to every live peer, to one, or between two."""
        count = _whole_number(request.query.get("count", "3"), "count", PINGS_MAX)
        members = self._daemon.overlay.members()
        named = [await self._find(text) for text in request.query.getall("peer", [])]
        match named:
            case []:
                others = [member for member in members if member.status in ("alive", "suspect") and not member.is_self]
            case [one]:
                others = [one]
            case [one, two]:
                if not one.is_self and not two.is_self:
                    return web.json_response([self._between(one, two)])
                others = [two if one.is_self else one]
            case _:
                raise PeerError("name at most two peers", exit_code=Exit.MISUSE)
        rows = await asyncio.gather(*(self._ping(member, count) for member in others))
        return web.json_response(sorted(rows, key=lambda row: (row["rtt_ms"] is None, row["rtt_ms"])))

    async def _ping(self, member: Member, count: int) -> dict[str, Any]:
        overlay = self._daemon.overlay
        times: list[float] = []
        for turn in range(count):
            if turn:
                await asyncio.sleep(PING_GAP_S)
            try:
                times.append(await overlay.ping(member.peer_id) if not member.is_self else 0.0)
            except ConnectionError:
                continue
        return {
            "from_id": overlay.peer_id.hex(),
            "peer_id": member.peer_id.hex(),
            "address": format_address(member.address),
            "rtt_ms": sum(times) / len(times) if times else None,
            "rtt_ms_min": min(times, default=None),
            "rtt_ms_max": max(times, default=None),
            "sent": count,
            "lost": count - len(times),
            "kind": "measured" if times else "unknown",
            "error_ms": None,
        }

    def _between(self, one: Member, two: Member) -> dict[str, Any]:
        distance = self._daemon.overlay.distance(one.peer_id, two.peer_id)
        return {
            "from_id": one.peer_id.hex(),
            "peer_id": two.peer_id.hex(),
            "address": format_address(two.address),
            "rtt_ms": distance.ms,
            "rtt_ms_min": None,
            "rtt_ms_max": None,
            "sent": 0,
            "lost": 0,
            "kind": distance.kind,
            "error_ms": distance.error_ms,
        }

    async def _may_manage(self, request: web.Request, *, own_user_may: bool = False) -> None:
        """Refuse whoever may not manage the network. The peer's own user, who has no token, may stop it."""
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if own_user_may and not token:
            return
        until = time.monotonic() + RIGHTS_KNOWN_S
        while (refusal := self._daemon.driver.objection(token, "admin")) is not None:
            if not refusal.retry_after_ms or time.monotonic() > until:
                break
            await asyncio.sleep(refusal.retry_after_ms / 1000)  # It has just started, and reads who may do what.
        if refusal is not None:
            raise PeerError(refusal.error, detail=refusal.detail, hint=refusal.hint)

    async def _token(self, request: web.Request) -> web.Response:
        await self._may_manage(request)
        return web.json_response({"token": str(self._daemon.token_for_others())})

    async def _leave(self, request: web.Request) -> web.Response:
        await self._may_manage(request, own_user_may=True)
        self._daemon.request_stop("peer leave", leave=True)
        overlay = self._daemon.overlay
        return web.json_response({"peer_id": overlay.peer_id.hex(), "network": overlay.network.name}, status=202)

    async def _leaving(self, _request: web.Request) -> web.Response:
        """How far the handover is: after a moment, or at once when it is over."""
        return web.json_response(await self._daemon.departure.news(LEAVING_NEWS_S))

    async def _stop(self, request: web.Request) -> web.Response:
        await self._may_manage(request, own_user_may=True)
        self._daemon.request_stop("peer down")
        return web.json_response({}, status=202)

    async def _force_leave(self, request: web.Request) -> web.Response:
        await self._may_manage(request)
        body = await request.json()
        text = body.get("peer") if isinstance(body, dict) else None
        member = await self._find(str(text))
        if member.status != "left":
            try:
                await self._daemon.overlay.force_leave(member.peer_id)
            except ValueError as error:
                raise PeerError(
                    f"peer {member.peer_id.short} is {member.status}, so it cannot be forced to leave",
                    detail=f"Seen at {format_address(member.address)}.",
                    hint='Stop it there with "peer leave"; a peer that has died is listed as dead within seconds.',
                ) from error
            log.info("peer forced to leave", peer=member.peer_id.short)
        return web.json_response({"peer_id": member.peer_id.hex()})

    async def _expel(self, request: web.Request) -> web.Response:
        await self._may_manage(request)
        body = await request.json()
        member = await self._find(str(body.get("peer") if isinstance(body, dict) else None))
        if member.status != "expelled":
            try:
                await self._daemon.overlay.expel(member)
            except ValueError as error:
                raise PeerError(
                    f"peer {member.peer_id.short} is not expelled: {error}",
                    hint='"peer leave" takes a peer out of the network where it runs.' if member.is_self else None,
                    exit_code=Exit.MISUSE if member.is_self else Exit.FAILED,
                ) from error
        return web.json_response({"peer_id": member.peer_id.hex(), "address": format_address(member.address)})

    async def _expelling(self, request: web.Request) -> web.Response:
        """How far the new network key has come."""
        membership = self._daemon.overlay.membership
        has, waiting = membership.progress()
        return web.json_response(
            {
                "is_expelled": any(peer.hex() == request.query.get("peer") for peer in membership.ring.expelled),
                "generation": membership.network.generation,
                "has": len(has),
                "of": len(has) + len(waiting),
                "waiting": [peer.hex() for peer in waiting],
            }
        )

    async def _healthz(self, _request: web.Request) -> web.Response:
        daemon = self._daemon
        healthy = daemon.state == "running"
        return web.json_response({"state": daemon.state, "trouble": daemon.trouble}, status=200 if healthy else 503)

    async def _metrics_text(self, _request: web.Request) -> web.Response:
        from peerd.metrics import CONTENT_TYPE_LATEST, metrics_text  # Takes 1 MB, so it is loaded only when asked for.

        return web.Response(body=metrics_text(self._daemon), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _find(self, text: str) -> Member:
        """The member that a request names, among those known here or in the whole network."""
        overlay = self._daemon.overlay
        try:
            return find_member(text, overlay.members())
        except PeerError as error:
            if error.exit_code != Exit.NOT_FOUND:
                raise
        return find_member(text, await overlay.crawl())


def find_member(text: str, members: list[Member]) -> Member:
    """The one member whose id starts with the text; otherwise an error that names the nearest."""
    prefix = text.strip().lower()
    if not prefix or len(prefix) > 2 * ID_BYTES or not set(prefix) <= set("0123456789abcdef"):
        raise PeerError(
            f'"{text}" is not the beginning of a peer id',
            hint='An id is hexadecimal; "peer members" lists them.',
            exit_code=Exit.MISUSE,
        )
    found = [member for member in members if member.peer_id.hex().startswith(prefix)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(f"{member.peer_id.hex()[:12]} ({member.status})" for member in found[:5])
        raise PeerError(
            f'"{text}" is the beginning of {len(found)} peer ids',
            detail=f"They are {names}{' and more' if len(found) > 5 else ''}.",
            hint="Write more of its digits.",
            exit_code=Exit.NOT_FOUND,
        )
    nearest = max(members, key=lambda member: (_digits_shared(prefix, member.peer_id.hex()), -member.peer_id.number))
    guess = f"The nearest is {nearest.peer_id.short}. " if _digits_shared(prefix, nearest.peer_id.hex()) else ""
    raise PeerError(
        f'no peer has an id that starts with "{text}"',
        detail=f"Looked among {len(members)} peers.",
        hint=f'{guess}"peer members" lists them.',
        exit_code=Exit.NOT_FOUND,
    )


def _digits_shared(one: str, two: str) -> int:
    return next((place for place, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def _member_row(member: Member, overlay: Overlay) -> dict[str, Any]:
    is_there = member.status not in ("left", "dead", "expelled")
    unshared = differences(overlay.understanding.versions, member.versions) if is_there else ()
    return {
        "peer_id": member.peer_id.hex(),
        "status": member.status,
        "address": format_address(member.address),
        "version": member.version,
        "has_engine": member.has_engine,
        "rtt_ms": member.rtt_ms,
        "sent_bytes": overlay.links.bytes_to(member.peer_id),
        "since_at": member.since_at,
        "is_self": member.is_self,
        "not_shared": in_words(unshared),
        "means": meaning(unshared),
        "advice": advice(unshared),
    }


def _whole_number(text: str, name: str, most: int) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= most:
        raise PeerError(f'{name} must be a number from 1 to {most}, not "{text}"', exit_code=Exit.MISUSE)
    return int(text)


@web.middleware
async def _answer_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn an error into the JSON that commands understand."""
    try:
        return await handler(request)
    except PeerError as error:
        return web.json_response(error.to_json(), status=_HTTP_STATUS.get(error.exit_code, 500))
    except web.HTTPException as error:
        refusal = PeerError(
            f'this daemon has no "{request.method} {request.path}"',
            detail=f"It is version {__version__}.",
            hint="Is the command newer than the daemon? Restart the peer.",
        )
        return web.json_response(refusal.to_json(), status=error.status)
    except json.JSONDecodeError:
        return web.json_response(PeerError("the request is not JSON", exit_code=Exit.MISUSE).to_json(), status=400)

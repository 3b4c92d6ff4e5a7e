"""What a daemon does: one peer as a process, from the lock on its data directory to its goodbye.

A peer whose seeds do not answer stays up and keeps trying, because the network may just be late. Every stop is
announced to the others, so nobody has to find out by waiting. `peer leave` first hands over what the peer holds, and
marks the data directory. A second signal ends the process at once.
"""

from __future__ import annotations

from peerd import lean

# isort: split
import asyncio
import os
import random
import signal
import time
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal, NoReturn, TypeVar

import structlog
import uvloop

from overlay.identity import Address, IdentityError, JoinToken, PeerRecord, format_address, parse_address
from overlay.keyring import Statement
from overlay.membership import when
from overlay.overlay import JoinError, Overlay
from overlay.pace import Paces
from overlay.shaping import Shaper
from peerd import __version__
from peerd.addresses import cannot_listen, listening_host, own_seed, resolve_host
from peerd.admission import (
    JOIN_HINT,
    REPLACED_HINT,
    admit,
    expelled_error,
    keep_ring,
    load_identity,
    not_joined,
    ring_for,
    unanswered,
)
from peerd.config import DEFAULT_PORT, Config, unknown_variables
from peerd.control import Control
from peerd.datadir import CONTACTS_MAX, DataDir
from peerd.departure import Departure
from peerd.disk import FileDisk
from peerd.driver import Driver
from peerd.engines import Spark
from peerd.errors import PeerError
from peerd.gateway import Gateway
from peerd.logs import configure_logs
from peerd.meter import cores
from peerd.standby import stand_by
from protocols.errors import RemoteProtocolError
from protocols.journal.format import JournalCorrupt
from protocols.limits import Limits
from spark_jobs.session import SessionSettings

JOIN_TIMEOUT_S: Final = 10.0
LEAVE_TIMEOUT_S: Final = 10.0
CONTACTS_EVERY_S: Final = 5.0
SEEDS_IN_TOKEN_MAX: Final = 3
RIGHTS_EVERY_MS: Final = 5000

State = Literal["joining", "running", "expelled", "stopping"]
Result = TypeVar("Result")

log = structlog.get_logger("peerd")


class Daemon:
    """One running peer."""

    overlay: Overlay
    driver: Driver
    gateway: Gateway

    def __init__(self, config: Config, data: DataDir, *, join_within_s: float | None = None) -> None:
        self.config = config
        self.data = data
        self.started_at = time.time()
        self.is_member = False
        self.trouble: str | None = None  # Why this peer is not a member yet.
        self.http_address: str | None = None
        self._join_within_s = join_within_s
        self._token: JoinToken
        self._has_tried_to_join = False
        self._stop = asyncio.Event()
        self._leaving = False
        self.departure = Departure()
        self._is_cast_out = asyncio.Event()  # This peer was expelled from the network.
        self._contacts_are_lost = False  # The last attempt to write them failed; logged once.

    async def run(self, lifeline: int | None = None) -> None:
        """Run until asked to stop. With join_within_s, it is an error if the network does not answer in time."""
        self._listen_for_the_end(lifeline)
        token = await self._unless_stopped(admit(self.config, self.data))
        if token is None:
            return
        self._token = token
        with FileDisk(self.data.journal_dir) as disk:
            await self._run_peer(disk)

    async def _run_peer(self, disk: FileDisk) -> None:
        await self._start_overlay(disk)
        control = Control(self)
        try:
            self.http_address = await control.open()
            self.gateway.life = self.driver.life
            await self.gateway.open(self.data.data_socket_path)
            self.data.clear_left()
            log.info(
                "peer ready",
                peer=self.overlay.peer_id.short,
                network=self._token.network.name,
                address=format_address(self.overlay.address),
                http=self.http_address,
            )
            await self._unless_stopped(self._belong())
            if self._leaving:
                await self.departure.drain(self.driver)
            if not self._is_cast_out.is_set():
                self.gateway.close()
                await self.driver.stop()
            await self._say_goodbye()
        except BaseException:
            self.gateway.close()
            await self.driver.stop()
            await self.overlay.stop()
            raise
        finally:
            await control.close()

    @property
    def state(self) -> State:
        if self._stop.is_set():
            return "stopping"
        if self._is_cast_out.is_set():
            return "expelled"
        return "running" if self.is_member else "joining"

    @property
    def http_port(self) -> int | None:
        """The port for /healthz and /metrics; None for none. A peer on any free port has any free HTTP port."""
        if self.config.port == 0 and self.config.http_port is None:
            return 0
        return self.config.http_port_for(self.config.port) or None

    def token_for_others(self) -> JoinToken:
        """A join token that works now: this peer first, then the original seeds and live members."""
        own = self.config.advertise_seed or self.overlay.address
        alive = [member.address for member in self.overlay.members() if member.status == "alive"]
        seeds = dict.fromkeys([own, *self._token.seeds, *alive])
        return JoinToken(self.overlay.network, tuple(seeds)[:SEEDS_IN_TOKEN_MAX])

    def request_stop(self, reason: str, *, leave: bool = False) -> None:
        if not self._stop.is_set():
            self._leaving = leave
            self._stop.set()
            log.info("stopping", reason=reason)

    # From start to membership.

    async def _start_overlay(self, disk: FileDisk) -> None:
        """Recover, then listen: a peer with half of its memory answers nobody."""
        config = self.config
        seeds = self._seeds()
        host = listening_host(config, seeds)
        advertise = resolve_host(config.advertise) if config.advertise else None
        identity = load_identity(self.data)
        self.overlay = Overlay(
            identity,
            self._token.network,
            host=host,
            port=config.port,
            advertise=advertise,
            version=__version__,
            has_engine=config.spark != "off",
            seeds=seeds,
            shaper=_shaper(config),
            paces=Paces.of(config.uplink, config.downlink),
            ring=ring_for(self.data, self._token),
            save_ring=partial(keep_ring, config, self.data, seeds=self._token.seeds),
        )
        self.overlay.membership.on_cast_out.append(self._cast_out)
        self.overlay.on_up.append(self._met)
        spark = None if config.spark == "off" else Spark(SessionSettings(config.spark_master, config.spark_memory))
        limits = Limits(rights_every_ms=RIGHTS_EVERY_MS)
        self.driver = Driver(self.overlay, disk, random.Random(), limits, spark, config.capacities(cores()))
        self.driver.limit(config.quotas)
        self.gateway = Gateway(self.driver.submit, lambda: self.driver.is_running)
        self.driver.on_reply = self.gateway.reply
        try:
            await self.driver.recover()
        except JournalCorrupt as error:
            raise _damaged(error, self.data) from error
        except RemoteProtocolError as error:
            raise _unreadable(error, self.data) from error
        await self.driver.engines.look()  # Before anybody hears of us.
        try:
            await self.overlay.start()
        except OSError as error:
            raise cannot_listen(error, host, config.port, key="port", origin=config.origin("port")) from error

    def _seeds(self) -> list[Address]:
        """Whom to ask for a way in: seeds from settings and token, then members met before; never ourselves."""
        met = []
        for contact in self.data.read_contacts():
            with suppress(IdentityError):
                met.append(parse_address(contact, DEFAULT_PORT))
        asked = dict.fromkeys([*self.config.seeds, *self._token.seeds])
        own = (own_seed(self.config), (self.config.host, self.config.port))
        others = [seed for seed in asked if seed not in own]
        # There is nobody else to ask: we are the founder, and one peer is a network.
        self.is_member = not others
        return list(dict.fromkeys([*others, *met]))

    def _met(self, _record: PeerRecord) -> None:
        if self.trouble is not None:
            log.info("the network answers now", network=self._token.network.name)
        self.is_member, self.trouble = True, None
        if self._has_tried_to_join:
            self.driver.begin()

    def _cast_out(self, statement: Statement) -> None:
        self.trouble = f"by peer {statement.maker.hex()} at {when(statement)}"
        self._is_cast_out.set()

    async def _sit_out(self) -> NoReturn:
        """Stay outside of a network that has expelled this peer, and answer commands that ask."""
        self.gateway.close()
        await self.driver.stop()
        await asyncio.Event().wait()
        raise AssertionError("an event that nobody sets")

    async def _belong(self) -> NoReturn:
        """Join, then remember whom we meet. Until somebody answers, the overlay keeps asking the seeds."""
        if (statement := self.overlay.membership.cast_out) is not None:
            log.error("this peer was expelled from the network", by=statement.maker.hex(), at=when(statement))
            self._cast_out(statement)
            self.overlay.fall_silent()
            await self._sit_out()
        try:
            known = await self.overlay.join(timeout_s=self._join_within_s or JOIN_TIMEOUT_S)
        except JoinError as error:
            statement = self.overlay.membership.cast_out
            if statement is not None and self._join_within_s is not None:
                raise expelled_error(self._token.network.name, statement) from error
            if not self.is_member and statement is None:
                refusal = self.overlay.understanding.trouble()
                replaced = self.overlay.membership.trouble
                self.trouble = refusal or replaced or unanswered(self.overlay.dht.seeds)
                if self._join_within_s is not None:
                    hint = REPLACED_HINT if self.data.read_contacts() else JOIN_HINT  # A newcomer has met nobody.
                    why = (refusal,) if refusal else (replaced, hint)
                    raise not_joined(self._token, self._join_within_s, *why) from error
                log.warning("not a member yet, still trying", reason=self.trouble)
        else:
            self.is_member = True
            log.info("member of the network", network=self._token.network.name, peers_known=known)
        self._has_tried_to_join = True
        if self.is_member:
            self.driver.begin()
        if self.config.spark == "warm":
            self.driver.engines.keep_warm()
        await asyncio.to_thread(_learn_languages)
        lean.look_for_cycles_rarely()
        lean.give_memory_back()
        while True:
            self._remember_contacts(self._contacts())
            outside = asyncio.ensure_future(self._is_cast_out.wait())
            try:
                ends: list[asyncio.Future[Any]] = [self.driver.failure, outside]
                await asyncio.wait(ends, timeout=CONTACTS_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
            finally:
                outside.cancel()
            if self._is_cast_out.is_set():
                await self._sit_out()
            if self.driver.failure.done():
                self.driver.failure.result()

    def _contacts(self) -> list[str]:
        alive = [member.address for member in self.overlay.members() if member.status == "alive" and not member.is_self]
        return sorted(format_address(address) for address in alive)[:CONTACTS_MAX]

    def _remember_contacts(self, contacts: list[str]) -> None:
        """Write down who is there, for the next start: the seeds of the token may be gone by then."""
        if not contacts or contacts == self.data.read_contacts():
            return
        try:
            self.data.write_contacts(contacts)
        except OSError as error:  # For instance a full disk; the peer can do without, and tries again later.
            if not self._contacts_are_lost:
                log.warning("cannot write down the members met", file=str(self.data.contacts_file), reason=str(error))
            self._contacts_are_lost = True
        else:
            self._contacts_are_lost = False

    # The end.

    async def _say_goodbye(self) -> None:
        contacts = self._contacts()
        if self._is_cast_out.is_set():
            await self.overlay.stop()
            log.info("stopped", network=self._token.network.name)
            return
        try:
            await asyncio.wait_for(self.overlay.leave(), LEAVE_TIMEOUT_S)
        except TimeoutError:
            log.warning("goodbye not heard by all", waited_s=LEAVE_TIMEOUT_S)
            await self.overlay.stop()
        self._remember_contacts(contacts)
        if self._leaving:
            self.data.mark_left(self._token.network.name, time.time())
        log.info("left the network" if self._leaving else "stopped", network=self._token.network.name)

    def _listen_for_the_end(self, lifeline: int | None) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._signalled, number)
        if lifeline is not None:
            # The starter holds the other end: when it is gone, however it ended, this becomes readable.
            loop.add_reader(lifeline, self._lifeline_cut, lifeline)

    def _signalled(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            self.data.remove_traces()
            os._exit(128 + number)
        self.request_stop(number.name)

    def _lifeline_cut(self, lifeline: int) -> None:
        asyncio.get_running_loop().remove_reader(lifeline)
        self.request_stop("the process that started this peer has gone")

    async def _unless_stopped(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """The result of the work, or None if the daemon is asked to stop first."""
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for each in (task, stop):
                each.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)


def _learn_languages() -> None:
    """Load the query languages before the first query: loading takes a second, parsing a millisecond."""
    from queries.errors import QueryError
    from queries.query import parse

    with lean.without_needless():
        for nothing in ("SELECT", "<nothing/>"):
            with suppress(QueryError):
                parse(nothing, {})


def _shaper(config: Config) -> Shaper | None:
    """Delays bytes to some addresses, if the settings ask for an artificial network."""
    if not config.delays:
        return None
    shaper = Shaper(random.Random())
    for address, delay_ms in config.delays:
        shaper.shape(address, delay_ms=delay_ms)
    return shaper


def _damaged(error: JournalCorrupt, data: DataDir) -> PeerError:
    return PeerError(
        f"the journal of this peer is damaged: {error}",
        detail=f'In "{data.journal_dir}". A crash alone does not do that: look at the disk.',
        hint="Move that folder away to start empty; what other peers hold comes back from them.",
    )


def _unreadable(error: RemoteProtocolError, data: DataDir) -> PeerError:
    return PeerError(
        f"the journal of this peer has a record that release {__version__} cannot read: {error}",
        detail=f'In "{data.journal_dir}". A newer release has written it: an older one does not read its journal.',
        hint="Start the peer with that release. Or move the folder away: then the peer starts empty.",
    )


def run_daemon(
    config: Config,
    data: DataDir,
    *,
    join_within_s: float | None = None,
    lifeline: int | None = None,
    stands_by: bool = False,
) -> None:
    """Run the peer of a data directory in this process until it is stopped; with stands_by, once it is not away."""
    configure_logs(config.log_level, config.log_format)
    for sentence in unknown_variables(os.environ):
        log.warning("misspelt setting", reason=sentence)
    data.prepare()
    while not stands_by or stand_by(data):
        with data.held():
            uvloop.run(_run(config, data, join_within_s, lifeline))
        if not stands_by or data.left() is None:
            return


async def _run(config: Config, data: DataDir, join_within_s: float | None, lifeline: int | None) -> None:
    await Daemon(config, data, join_within_s=join_within_s).run(lifeline)

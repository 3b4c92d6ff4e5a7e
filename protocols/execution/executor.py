"""The host of subgraphs: takes them in, wires them to streams and to each other, and hands their results on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar, Final

from protocols.delivery.messages import (
    Ack,
    Subscribe,
    Unsubscribe,
    subscription_name,
)
from protocols.demand import Lack
from protocols.effects import Effect, Reply, Send, SetTimer, Tell
from protocols.errors import expect
from protocols.events import Answered, Event, PeerDown, Received, Requested, TimerFired, Unreachable
from protocols.execution.admission import NO_ROOM, Admission, UseMeasured
from protocols.execution.aggregation import Aggregation, Aggregations
from protocols.execution.engine import EngineTried, RunFailed, RunResults, RunStarted, RunState, StopRun, WarmEngine
from protocols.execution.flow_rows import chunks, encode_rows
from protocols.execution.hosted import Hosted, Incoming
from protocols.execution.run import RunOutput, SubgraphRun
from protocols.execution.soundness import unsound_subgraph
from protocols.ids import Millis, PeerId, StreamName
from protocols.inside import Inside
from protocols.limits import Limits
from protocols.messages import Message, Refused
from protocols.part import Part
from protocols.role import Owned
from protocols.sharing.host import Outcome, StreamHost
from protocols.sharing.messages import ListShared
from protocols.sharing.relay import SIFT
from protocols.sharing.tap import Broken, Due, Some, Tap, TapOpened, What
from protocols.subgraphs import (
    Deploy,
    Deployed,
    DeployRefused,
    Flow,
    Flowed,
    FlowInput,
    Indexed,
    Lease,
    Prepare,
    Prepared,
    Progress,
    ResultsReady,
    ResultsSafe,
    Spark,
    StreamInput,
    Undeploy,
    first_proxy,
)
from queries.schema import MISFITS

ROLE: Final = "executor"
TICK: Final = "executor/tick"
MORE: Final = "executor/more"
TICK_MS: Final = 100
WORK: Final = "executor/work"
STATUS_MS: Final = 1000
LEASE_MS: Final = 20_000  # A subgraph whose proxy sends no LEASE for so long is given up.
LAPSED_MS: Final = 10_000  # After so long without one, another proxy may have its place.
RESEND_MS: Final = 2000
FLOWED_MS: Final = 200  # Flows are acknowledged together: at the latest after so long,
FLOWED_MAX: Final = 16  # or when so many have come. Their maker waits only beyond IN_FLIGHT_MAX.
FORGET_MS: Final = 10_000  # A proxy that has not sent PREPARE again for so long has stopped waiting.
RUNS_MAX: Final = 5000
STATE_ROWS_MAX: Final = 1_000_000  # Of all windows in the daemon; at some 500 bytes each, as much as a Spark takes.
EARLY_MAX: Final = 1000  # What waits for the engine of one subgraph; more flows are sent again later.
IN_FLIGHT_MAX: Final = 64  # Back-pressure: with more flows unacknowledged, inputs are not acknowledged either.

WORK_MAX: Final = 400  # In one event, in portions of rows for one subgraph; the rest waits for the next event.
ROWS_OF_WORK: Final = 100  # So many rows are as much work as one more portion.

RunKey = tuple[StreamName, int]  # The stream of a query's results, and the number of one of its subgraphs.


@dataclass(slots=True)
class Executor:
    """Subgraphs at one peer.

    In:        PREPARE, DEPLOY, UNDEPLOY, LEASE from proxies; FLOW, FLOWED from other hosts; rows; the engine's word
    Out:       PREPARED, DEPLOYED, DEPLOY_REFUSED, SUBGRAPH_STATUS; FLOW, FLOWED; runs of the engine
    Keeps:     nothing on disk: a host that forgets is noticed by the proxy, which starts anew
    Invariant: the progress of a flow or result covers only inputs whose results left in it, or earlier
    """

    owned: ClassVar[Owned] = Owned(
        ROLE,
        messages=(Deploy, Undeploy, Lease, Flow, Flowed, Prepare, Subscribe, Ack, Unsubscribe),
        commands=(ListShared,),
        events=(RunStarted, RunResults, RunState, RunFailed, EngineTried, ResultsSafe, UseMeasured),
    )

    peer_id: PeerId
    inside: Inside
    limits: Limits = field(default_factory=Limits)
    has_spark: bool = True
    trouble: str = ""  # Why Spark did not start when it was last tried.
    hosted: dict[RunKey, Hosted] = field(default_factory=dict)
    streams: StreamHost = field(init=False)
    admission: Admission = field(init=False)
    _consumers: dict[RunKey, tuple[RunKey, FlowInput]] = field(default_factory=dict)  # By the maker of a flow.
    _inputs: dict[Tap, tuple[RunKey, str]] = field(default_factory=dict)  # What each tap is for: an alias of a run.
    _due: deque[Due] = field(default_factory=deque)  # What taps have for their runs.
    _runs: dict[str, RunKey] = field(default_factory=dict)
    _awaited: dict[tuple[PeerId, Prepare], Millis] = field(default_factory=dict)  # Who asked for the engine, and when.
    aggregations: Aggregations = field(default_factory=Aggregations)
    _busy: dict[Aggregation, None] = field(default_factory=dict)  # Those whose work is continued.
    _is_ticking: bool = False

    def __post_init__(self) -> None:
        self.streams = StreamHost(self.peer_id, self.inside, ROLE, self.limits)
        self.admission = Admission(self.peer_id)

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        return [*self._happened(event, now), *self._serve(now), *self._work(now), *self.streams.settled()]

    def _happened(self, event: Event, now: Millis) -> list[Effect]:  # noqa: C901 - one branch for each thing
        match event:
            case Received(sender=sender, message=Deploy() as message):
                is_ours = not isinstance(message.subgraph.engine, Indexed)
                return self._deploy(sender, message, now) if is_ours else []
            case Received(sender=sender, message=Undeploy() as message):
                return self._undeploy(sender, message)
            case Received(sender=sender, message=Lease() as message):
                self._renew(sender, message, now)
            case Received(sender=sender, message=Flow() as message):
                return self._flow(sender, message, now)
            case Received(sender=sender, message=Flowed() as message):
                return self._flowed(sender, message)
            case Answered(request=request, answer=answer) if self.streams.knows(request):
                return self._to_serve(self.streams.answered(request, answer, now))
            case RunStarted(run=run) if run in self._runs:
                return self._started(self._runs[run], now)
            case RunResults(run=run) if run in self._runs:
                key = self._runs[run]
                return self._hand_on(key, self.hosted[key].run.finished(event.number, event.rows), now)
            case RunState(run=run) if run in self._runs:
                self.hosted[self._runs[run]].run.state_rows = event.rows
            case RunFailed(run=run) if run in self._runs:
                return self._fail(self._runs[run], event.reason)
            case Received(sender=sender, message=Prepare() as message):
                return self._prepare(sender, message, now)
            case Requested(request=request, command=ListShared()):
                return [Reply(request, self.streams.listed(self.aggregations.sharing))]
            case EngineTried(reason=reason):
                return self._tried(reason)
            case ResultsSafe():
                return self._results_safe(event)
            case UseMeasured():
                self.admission.measured(event, self.hosted, now)
            case TimerFired(name="executor/tick"):
                return self._tick(now)
            case Received(sender=sender, message=(Subscribe() | Ack() | Unsubscribe()) as message):
                return self.streams.guest(sender, message, now)
            case TimerFired(name=name) if name.startswith(SIFT):
                return self.streams.woken(name.removeprefix(SIFT), now)
            case PeerDown(peer=peer) | Unreachable(peer=peer):
                return self.streams.lost(peer)
        return []

    # Coming and going.

    def _deploy(self, proxy: PeerId, message: Deploy, now: Millis) -> list[Effect]:
        subgraph = message.subgraph
        key = (message.query, subgraph.number)
        expect(subgraph.consumer is not None or proxy == self.peer_id, "results for a query of this peer")
        effects = self._make_way(key, proxy, now)
        known = self.hosted.get(key)
        if known is not None and known.proxy != proxy:
            return [self._refusal(proxy, message, f"peer {known.proxy.short} runs a part of this query here")]
        if known is not None and known.run.deploy.attempt >= message.attempt:
            same = known.run.deploy.attempt == message.attempt and known.is_announced
            return [self._announcement(known)] if same else []
        effects += self._end(key) if known is not None else []
        reason = self._objection(message)
        if reason:
            return [*effects, self._refusal(proxy, message, reason)]
        if lack := self.admission.refuses(key, message, proxy, self.streams.shared):
            return [*effects, self._refusal(proxy, message, NO_ROOM, lack=lack)]
        whose = "" if proxy == self.peer_id else f"@{proxy.hex()}"
        run = SubgraphRun(
            message, f"{message.query}.{subgraph.number}~{message.attempt}{whose}", now, self.aggregations
        )
        hosted = self.hosted[key] = Hosted(run, proxy, now, now)
        self._runs[run.run_id] = key
        for each in subgraph.inputs:
            match each:
                case StreamInput():
                    effects += self._tap(key, hosted, each, now)
                case FlowInput():
                    hosted.expected[each.subgraph] = 0
                    self._consumers[message.query, each.subgraph] = key, each
        if not self._is_ticking:
            self._is_ticking = True
            effects.append(SetTimer(TICK, TICK_MS))
        effects += run.start()
        return [*effects, *(self._started(key, now) if run.is_inline else [])]

    def _make_way(self, key: RunKey, proxy: PeerId, now: Millis) -> list[Effect]:
        """End what another proxy has put in the place of a subgraph.

        The stream of a query names its first proxy. Another one, which has taken the query over, waits until nobody
        renews the lease.
        """
        known = self.hosted.get(key)
        if known is None or known.proxy == proxy:
            return []
        is_first = first_proxy(key[0]) == proxy.short
        return self._end(key) if is_first or now - known.leased_at > LAPSED_MS else []

    def _prepare(self, proxy: PeerId, message: Prepare, now: Millis) -> list[Effect]:
        """Start the engine, and answer once it is ready or has failed."""
        if why := self._no_engine or (NO_ROOM if self.admission.closed_to(proxy) else ""):
            return [self._send(proxy, Prepared(query=message.query, attempt=message.attempt, reason=why))]
        self._awaited = {each: at for each, at in self._awaited.items() if now - at < FORGET_MS}
        if len(self._awaited) < RUNS_MAX:
            self._awaited[proxy, message] = now
        return [WarmEngine()]

    def _tried(self, reason: str) -> list[Effect]:
        self.trouble = reason
        awaited, self._awaited = self._awaited, {}
        return [
            self._send(proxy, Prepared(query=asked.query, attempt=asked.attempt, reason=reason))
            for proxy, asked in awaited
        ]

    @property
    def _no_engine(self) -> str:
        """Why this peer has no engine; empty where it may have one."""
        return self.trouble if self.has_spark else "this peer runs without Spark"

    def _objection(self, message: Deploy) -> str:
        if isinstance(message.subgraph.engine, Spark) and self._no_engine:
            return self._no_engine
        subgraph = message.subgraph
        if unsound := unsound_subgraph(subgraph):
            return unsound
        if len(self.hosted) >= RUNS_MAX:
            return f"this peer runs {RUNS_MAX} subgraphs already"
        return ""

    def _tap(self, key: RunKey, hosted: Hosted, each: StreamInput, now: Millis) -> list[Effect]:
        run = hosted.run
        tap = Tap(
            name=subscription_name(f"{run.run_id}/{each.alias}"),
            stream=each.stream,
            since=each.since,
            source=run.sees(each.alias),
            parts=run.selects(each.alias),
            needed=run.needed(each.alias),
            columns=run.columns_of(each.alias),
            reads=run.reads(each.alias),
            is_timed=run.deploy.subgraph.is_timed,
            known=each.known,
            is_private=each.sharing == "off",
            places={position.origin: position.next for position in run.start_positions(each.alias)},
        )
        hosted.unopened[each.alias] = None
        hosted.taps[each.alias] = tap
        self._inputs[tap] = (key, each.alias)
        return self._to_serve(self.streams.attach(tap, now))

    def _undeploy(self, proxy: PeerId, message: Undeploy) -> list[Effect]:
        over = [
            key
            for key, hosted in self.hosted.items()
            if key[0] == message.query and hosted.proxy == proxy and hosted.run.deploy.attempt <= message.attempt
        ]
        return [effect for key in over for effect in self._end(key)]

    def _end(self, key: RunKey) -> list[Effect]:
        hosted = self.hosted.pop(key)
        self._runs.pop(hosted.run.run_id, None)
        if hosted.run.windows is not None and not self.aggregations.leave(hosted.run.windows):
            self._busy.pop(hosted.run.windows.aggregation, None)
        self.admission.end(key)
        effects: list[Effect] = [] if hosted.run.is_inline else [StopRun(hosted.run.run_id)]
        for subgraph in hosted.expected:
            self._consumers.pop((key[0], subgraph), None)
        for tap in hosted.taps.values():
            del self._inputs[tap]
            effects += self.streams.detach(tap)
        return effects

    def _fail(self, key: RunKey, reason: str, *, is_too_large: bool = False) -> list[Effect]:
        hosted = self.hosted[key]
        refusal = self._refusal(hosted.proxy, hosted.run.deploy, reason, is_too_large=is_too_large)
        return [*self._end(key), refusal]

    def _refusal(
        self, proxy: PeerId, deploy: Deploy, reason: str, *, is_too_large: bool = False, lack: Lack | None = None
    ) -> Effect:
        message = DeployRefused(
            query=deploy.query,
            attempt=deploy.attempt,
            number=deploy.subgraph.number,
            reason=reason,
            is_too_large=is_too_large,
            lack=lack,
        )
        return self._send(proxy, message)

    def _send(self, peer: PeerId, message: Message) -> Effect:
        """To a peer; to ourselves without the network."""
        return Tell(Received(self.peer_id, message)) if peer == self.peer_id else Send(peer, message)

    def _renew(self, proxy: PeerId, message: Lease, now: Millis) -> None:
        for key, hosted in self.hosted.items():
            if key[0] == message.query and hosted.proxy == proxy and hosted.run.deploy.attempt == message.attempt:
                hosted.leased_at = now

    def _started(self, key: RunKey, now: Millis) -> list[Effect]:
        hosted = self.hosted[key]
        hosted.is_started = True
        self.admission.begin(key, now)
        effects = self._announce(hosted)
        early, hosted.early = hosted.early, []
        for alias, what in early:
            if key in self.hosted:  # An earlier one may have made it fail.
                effects += self._take(key, alias, what, now)
        return effects

    def _announce(self, hosted: Hosted) -> list[Effect]:
        if hosted.is_announced or hosted.unopened or not hosted.is_started:
            return []
        hosted.is_announced = True
        return [self._announcement(hosted)]

    def _announcement(self, hosted: Hosted) -> Effect:
        deploy = hosted.run.deploy
        message = Deployed(query=deploy.query, attempt=deploy.attempt, number=deploy.subgraph.number, life=hosted.life)
        return self._send(hosted.proxy, message)

    # Rows in.

    def _to_serve(self, outcome: Outcome) -> list[Effect]:
        effects, due = outcome
        self._due += due
        return effects

    def _serve(self, now: Millis) -> list[Effect]:
        """Hand on what taps have, as much as one event has time for."""
        effects: list[Effect] = []
        work = WORK_MAX
        while self._due and work > 0:
            tap, what = self._due.popleft()
            if tap.is_over:
                continue
            work -= 1 + (len(what.rows) // ROWS_OF_WORK if isinstance(what, Some | Part) else 0)
            effects += self._give(*self._inputs[tap], what, now)
        return [*effects, SetTimer(MORE, 0)] if self._due else effects

    def _give(self, key: RunKey, alias: str, what: What, now: Millis) -> list[Effect]:
        match what:
            case TapOpened():
                self.hosted[key].unopened.pop(alias, None)
                return self._announce(self.hosted[key])
            case Refused():
                return self._fail(key, f"{what.error}. {what.detail}".strip())
            case Broken(reason=reason):
                return self._broken(key, alias, reason)
        return self._take(key, alias, what, now)

    def _broken(self, key: RunKey, alias: str, reason: str) -> list[Effect]:
        return self._fail(key, f"rows of {alias} do not have the columns they had: {reason}")

    def _flow(self, sender: PeerId, message: Flow, now: Millis) -> list[Effect]:
        found = self._consumers.get((message.query, message.subgraph))
        hosted = self.hosted[found[0]] if found is not None else None
        if found is None or hosted is None or hosted.run.deploy.attempt != message.attempt:
            return []  # Another attempt, or not deployed here yet: the maker sends it again.
        key, each = found
        maker = hosted.makers.setdefault(message.subgraph, each.maker or sender)
        expect(maker == sender, "a flow that another peer makes")
        if not hosted.is_started and len(hosted.early) >= EARLY_MAX:
            return []
        if hosted.lives.setdefault(message.subgraph, message.life) != message.life:
            return self._fail(key, f"subgraph {message.subgraph} began anew at peer {sender.short}")
        if message.sequence < hosted.expected[message.subgraph]:
            return [self._flowed_message(hosted, message.subgraph, sender)]
        if message.sequence > hosted.expected[message.subgraph]:
            return []
        hosted.expected[message.subgraph] += 1
        return self._take(key, each.alias, message, now)

    def _flowed_message(self, hosted: Hosted, subgraph: int, maker: PeerId) -> Effect:
        deploy, upto = hosted.run.deploy, hosted.acked.get(subgraph, 0)
        hosted.flowed[subgraph] = upto
        message = Flowed(query=deploy.query, attempt=deploy.attempt, subgraph=subgraph, sequence=upto)
        return self._send(maker, message)

    def _acknowledge_flows(self, hosted: Hosted, now: Millis) -> list[Effect]:
        """Acknowledge the flows that have come lately."""
        hosted.flowed_at = now
        return [
            self._flowed_message(hosted, subgraph, hosted.makers[subgraph])
            for subgraph, upto in hosted.acked.items()
            if upto > hosted.flowed.get(subgraph, 0)
        ]

    def _take(self, key: RunKey, alias: str, what: Incoming, now: Millis) -> list[Effect]:
        hosted = self.hosted[key]
        if not hosted.is_started:
            hosted.early.append((alias, what))
            return []
        try:
            taken = hosted.take(alias, what, now)
        except MISFITS as error:
            return self._broken(key, alias, str(error))
        if taken is None:
            return []
        effects, results = taken
        self._note_work(key)
        return effects + self._hand_on(key, results, now)

    # The work of the daemon itself.

    def _note_work(self, key: RunKey) -> None:
        windows = self.hosted[key].run.windows
        if windows is not None and windows.aggregation.has_work:
            self._busy[windows.aggregation] = None

    def _work(self, now: Millis) -> list[Effect]:
        """Work on the windows that have waited longest. What is left is for other events."""
        if not self._busy:
            return []
        aggregation = next(iter(self._busy))
        del self._busy[aggregation]
        following = self._due[0].what if self._due else None
        effects: list[Effect] = []
        try:
            ready = aggregation.work(following.rows if isinstance(following, Some) else None)
        except MISFITS as error:
            for windows in aggregation.broken():
                effects += self._broken(self._runs[windows.name], "its windows", str(error))
            ready = aggregation.ready()
        for windows in ready:
            key = self._runs[windows.name]
            effects += self._hand_on(key, self.hosted[key].run.worked(), now)
        if aggregation.has_work:
            self._busy[aggregation] = None
        return [*effects, SetTimer(WORK, 0)] if self._busy else effects

    def _bound_state(self) -> list[Effect]:
        """Give up the windows that keep most when all together keep too much. What several share counts once."""
        if self.aggregations.state_rows <= STATE_ROWS_MAX:
            return []
        name, kept = self.aggregations.largest()
        return self._fail(self._runs[name], f"{kept}, and all here may keep {STATE_ROWS_MAX}", is_too_large=True)

    # Results out.

    def _hand_on(self, key: RunKey, results: list[RunOutput], now: Millis) -> list[Effect]:
        hosted = self.hosted[key]
        deploy = hosted.run.deploy
        effects: list[Effect] = []
        for each in results:
            if deploy.subgraph.consumer is not None:
                effects += self._send_flows(hosted, each, now)
            elif each.rows:
                hosted.unsafe += 1
                effects.append(Tell(ResultsReady(deploy.query, deploy.attempt, each.rows, each.reached)))
        return effects + self._acknowledge_inputs(hosted)

    def _send_flows(self, hosted: Hosted, results: RunOutput, now: Millis) -> list[Effect]:
        deploy = hosted.run.deploy
        assert deploy.consumer_host is not None
        columns = hosted.run.columns
        effects: list[Effect] = []
        for rows, count, is_last in chunks(encode_rows(columns, results.rows), len(results.rows)):
            flow = Flow(
                query=deploy.query,
                attempt=deploy.attempt,
                subgraph=deploy.subgraph.number,
                life=hosted.life,
                sequence=hosted.next_sequence,
                rows=rows,
                count=count,
                is_new=results.is_new,
                progress=results.progress if is_last else Progress(),
                is_whole=is_last and results.reached is not None,
            )
            hosted.next_sequence += 1
            hosted.flows.append((flow, now))
            effects.append(self._send(deploy.consumer_host, flow))
        return effects

    def _flowed(self, sender: PeerId, message: Flowed) -> list[Effect]:
        hosted = self.hosted.get((message.query, message.subgraph))
        if hosted is None or hosted.run.deploy.attempt != message.attempt:
            return []
        expect(hosted.run.deploy.consumer_host == sender, "an answer to a flow that goes to another peer")
        while hosted.flows and hosted.flows[0][0].sequence < message.sequence:
            hosted.flows.popleft()
        return self._acknowledge_inputs(hosted)

    def _results_safe(self, event: ResultsSafe) -> list[Effect]:
        hosted = self.hosted.get((event.query, 0))
        if hosted is None or hosted.run.deploy.attempt != event.attempt:
            return []
        hosted.unsafe -= 1
        return self._acknowledge_inputs(hosted)

    def _acknowledge_inputs(self, hosted: Hosted) -> list[Effect]:
        """Acknowledge inputs whose results are out, unless too many results are still in flight."""
        run = hosted.run
        if len(hosted.flows) > IN_FLIGHT_MAX or hosted.unsafe > IN_FLIGHT_MAX:
            return []
        effects: list[Effect] = []
        for alias, upto in run.to_acknowledge.items():
            if isinstance(upto, int):
                subgraph = next(
                    each.subgraph
                    for each in run.deploy.subgraph.inputs
                    if isinstance(each, FlowInput) and each.alias == alias
                )
                hosted.acked[subgraph] = upto
                if upto - hosted.flowed.get(subgraph, 0) >= FLOWED_MAX:
                    effects.append(self._flowed_message(hosted, subgraph, hosted.makers[subgraph]))
            elif upto:
                effects += self.streams.acknowledge(hosted.taps[alias], tuple(upto.values()))
        run.to_acknowledge.clear()
        return effects

    # Time.

    def _tick(self, now: Millis) -> list[Effect]:
        effects = [*self._bound_state(), *self._to_serve(self.streams.tick(now))]
        for key, hosted in list(self.hosted.items()):
            if hosted.taps and now - hosted.caught_up_at >= hosted.catch_up_ms:
                hosted.caught_up_at = now
                effects += self._catch_up(hosted, now)
            if hosted.acked and now - hosted.flowed_at >= FLOWED_MS:
                effects += self._acknowledge_flows(hosted, now)
            if now - hosted.status_at < STATUS_MS and not hosted.run.goes_by_time and not hosted.flows:
                continue  # Nothing to do, for most of thousands of subgraphs.
            if now - hosted.leased_at > LEASE_MS and hosted.proxy != self.peer_id:
                effects += self._end(key)
                continue
            if hosted.is_started and hosted.run.goes_by_time:
                more, results = hosted.run.tick(now)
                effects += more
                effects += self._hand_on(key, results, now)
                self._note_work(key)
            effects += self._resend(hosted, now)
            if now - hosted.status_at >= STATUS_MS and hosted.is_announced:
                hosted.status_at = now
                effects += self._report_progress(hosted)
                status = hosted.run.status(hosted.life, now, self.streams.others(hosted.taps))
                effects.append(self._send(hosted.proxy, status))
        self._is_ticking = bool(self.hosted)
        return [*effects, SetTimer(TICK, TICK_MS)] if self._is_ticking else effects

    def _catch_up(self, hosted: Hosted, now: Millis) -> list[Effect]:
        """Tell a subgraph how far its streams are, though they had no rows for it."""
        for tap in hosted.taps.values():
            self._due += self.streams.catch_up(tap)
        return self._serve(now)

    def _report_progress(self, hosted: Hosted) -> list[Effect]:
        """Report progress without results: the next attempt would otherwise replay from rows that may have expired."""
        deploy, reached = hosted.run.deploy, hosted.run.to_report()
        if deploy.subgraph.consumer is not None or reached is None or reached == hosted.reported:
            return []
        hosted.reported = reached
        hosted.unsafe += 1
        return [Tell(ResultsReady(deploy.query, deploy.attempt, (), reached))]

    def _resend(self, hosted: Hosted, now: Millis) -> list[Effect]:
        if not hosted.flows or now - hosted.flows[0][1] < RESEND_MS:
            return []
        host = hosted.run.deploy.consumer_host
        assert host is not None
        again = [flow for flow, _ in hosted.flows]
        hosted.flows = deque((flow, now) for flow in again)
        return [self._send(host, flow) for flow in again]

    def validate(self) -> None:
        for run, key in self._runs.items():
            assert self.hosted[key].run.run_id == run
        for tap, (key, alias) in self._inputs.items():
            assert self.hosted[key].taps[alias] is tap
        assert all(each.has_work for each in self._busy)
        self.aggregations.validate()
        self.admission.validate(self.hosted)
        self.streams.validate()

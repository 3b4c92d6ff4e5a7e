"""The simulator itself, tried on a machine small enough to know by heart."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from overlay.sim.network import TIMEOUT_MS, Conditions
from overlay.sim.surroundings import PeerFailed
from overlay.sim.trace import Trace
from protocols.events import NEIGHBOURS_MAX, Started
from protocols.ids import Key, distance
from tests.sim.gossip import GossipWorld, Say, churn

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", range(5))
def test_nothing_acknowledged_is_lost_whatever_goes_wrong(seed: int):
    world = churn(seed)
    assert len(world.said) > 100
    for peer in world.peers:
        assert world.said.keys() <= world.knows(peer.index).keys(), f"seed {seed}: {peer} has lost a rumour"


def test_a_machine_that_answers_before_its_disk_has_it_is_found_out():
    """The simulator is only worth its crashes if they hurt."""

    def loses_something(seed: int) -> bool:
        world = GossipWorld(seed, 1, syncs=False)
        world.peers[0].disk.lost_share = 1.0
        world.say(0, 7)
        world.run_for(2)  # One millisecond to the peer; the sync takes longer than that.
        world.peers[0].crash()
        world.peers[0].start()
        return 7 in world.said and 7 not in world.knows(0)

    assert any(loses_something(seed) for seed in range(10))


def test_a_seed_repeats_itself_and_another_does_not():
    assert churn(1).trace.hash == churn(1).trace.hash
    assert churn(1).trace.hash != churn(2).trace.hash


def test_the_order_of_sets_does_not_matter():
    program = "from tests.sim.gossip import churn; print(churn(3).trace.hash)"

    def run(hash_seed: str) -> str:
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=environment).stdout

    assert run("1") == run("2")


def test_a_trace_tells_every_step():
    lines: list[str] = []
    world = GossipWorld(1, 2, trace=Trace(lines.append))
    world.say(0, 7)
    world.run_for(10)
    assert len(lines) == world.trace.steps
    assert lines[0] == "0.000 p0 Started() -> [SetTimer(name='tick', after_ms=544)]\n"
    assert "0.001 p0 Requested(request=1, command=Say(number=7)" in "".join(lines)
    assert world.trace.last_lines()[-1] == lines[-1].rstrip("\n")


def test_a_message_to_a_dead_peer_is_reported_once_the_sender_has_noticed():
    world = GossipWorld(1, 2)
    first, second = world.peers
    world.say(0, 7)
    world.run_for(5_000)
    second.crash()
    world.run_for(TIMEOUT_MS + 2_000)
    assert world.machines[first.peer_id].unreachable > 0


def test_a_cut_network_looks_smaller_from_both_sides_and_heals():
    world = GossipWorld(1, 6)
    side = {index: index < 2 for index in range(6)}
    world.run_for(1_000)
    cut = world.membership.separate(side, one_way=False)
    world.run_for(5_000)
    assert sorted(world.membership.neighbours(0)) == [1]
    assert sorted(world.membership.neighbours(5)) == [2, 3, 4]
    world.membership.heal(cut)
    world.run_for(5_000)
    assert sorted(world.membership.neighbours(0)) == [1, 2, 3, 4, 5]


def test_a_one_way_cut_lets_messages_through_in_one_direction():
    world = GossipWorld(1, 2)
    world.membership.separate({0: False, 1: True}, one_way=True)
    assert world.membership.is_cut(0, 1)
    assert not world.membership.is_cut(1, 0)


@pytest.mark.parametrize("peers", [1, 7, pytest.param(300, marks=pytest.mark.slow)])
def test_views_agree_with_the_truth_once_everybody_has_noticed(peers: int):
    world = GossipWorld(4, peers)
    rng = world.rng("test")
    for peer in rng.sample(world.peers, peers // 3):
        peer.crash()
    world.run_for(4_000)
    up = [peer for peer in world.peers if peer.is_up]
    for observer in rng.sample(up, min(20, len(up))):
        key = Key.of("test", str(observer.index))
        nearest = min(up, key=lambda peer: distance(peer.peer_id, key))
        assert world.membership.owner(key, observer.index) == nearest.index
        others = sorted(
            (peer for peer in up if peer is not observer), key=lambda peer: distance(peer.peer_id, observer.peer_id)
        )
        assert world.membership.neighbours(observer.index) == [peer.index for peer in others[:NEIGHBOURS_MAX]]


def test_a_paused_peer_does_everything_later_and_in_order():
    world = GossipWorld(1, 1)
    world.peers[0].pause(3_000)
    for number in range(5):
        world.say(0, number)
    world.run_for(2_900)
    assert not world.said
    world.run_for(200)
    assert list(world.said) == [0, 1, 2, 3, 4]


def test_lossy_and_repeating_networks_deliver_all_the_same():
    world = GossipWorld(1, 5)
    world.network.conditions = replace(Conditions(), loss=0.3, duplicate=0.3, reorder=0.3)
    world.say(0, 7)
    world.run_for(60_000)
    assert all(7 in world.knows(index) for index in range(5))
    assert all(world.network.counters[kind] > 0 for kind in ("lost", "duplicated", "reordered"))


def test_a_full_disk_holds_answers_back_until_it_has_room():
    world = GossipWorld(1, 1)
    world.peers[0].disk.fill(1.0)
    world.say(0, 7)
    world.run_for(5_000)
    assert not world.said
    world.peers[0].disk.fill(0.0)
    world.run_for(1_000)
    assert 7 in world.said


def test_a_peer_that_breaks_its_own_rules_stops_the_run_and_names_the_event():
    world = GossipWorld(1, 1)
    machine = world.machines[world.peers[0].peer_id]
    machine._neighbours[machine.peer_id] = None
    with pytest.raises(PeerFailed, match=r"p0\(.*AssertionError"):
        world.peers[0].take(Started(), world.peers[0].life)
    assert "Started()" in world.trace.last_lines()[-1]


def test_a_client_hears_that_its_peer_has_crashed():
    world = GossipWorld(1, 1)
    heard: list[object] = []
    world.peers[0].request(Say(number=1), lambda answer, last: heard.append((answer, last)))
    world.peers[0].crash()
    assert heard == [(None, True)]

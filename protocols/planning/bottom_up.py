"""Bottom-Up and NPC (IFLOW, sections 3.3 and 3.4): the query goes up from its sink and is decided piece by piece.

At each cluster what can be had inside it (V_local) is planned and deployed there, and stands for its streams from then
on; the rest (V_remote) goes up. Where nothing is remote, what is left is planned. NPC decides at a level only if its
present cost and the penalty of a poor order (Γ) are no more than what waiting may cost (Ω).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from protocols.planning.hierarchy import Cluster, Hierarchy
from protocols.planning.problem import Decision, Problem, Reused, members_of
from protocols.planning.within import Part, Within, can_be_joined, united

Waiting = Literal["result", "inputs"]
"""λ(Q) in Ω: the rate of the query's result, as the paper has it, or the sum of those of its streams."""


def plan_bottom_up(problem: Problem, hierarchy: Hierarchy) -> Decision:
    return _Climb(Within(problem, hierarchy)).decision("bottom-up")


def plan_by_present_cost(problem: Problem, hierarchy: Hierarchy, waiting: Waiting = "result") -> Decision:
    """NPC; with the rates of the inputs in Ω its name is npc-inputs."""
    name = "npc" if waiting == "result" else "npc-inputs"
    return _Climb(Within(problem, hierarchy), waiting).decision(name)


@dataclass(slots=True)
class _Climb:
    search: Within
    waiting: Waiting | None = None  # None: never wait.

    def decision(self, name: str) -> Decision:
        problem, search = self.search.problem, self.search
        parts = search.base_parts()
        for cluster in search.hierarchy.path(problem.sink):
            if not search.hosts_in(cluster):
                continue
            is_all_here = all(search.is_inside(cluster, part) for part in parts)
            local, rest = (parts, list[Part]()) if is_all_here else self._local(cluster, parts)
            if not rest:
                plan = search.place(cluster, local, problem.sink)
                return Decision(name, plan, problem.cost(plan), search.examined)
            if self._is_worth_deciding(parts, local) and self._is_time(cluster, local, rest):
                made = search.place(cluster, local, cluster.coordinator)
                parts = [search.part(made), *rest]
        raise AssertionError("the top coordinator sees all streams")

    def _is_worth_deciding(self, parts: Sequence[Part], local: Sequence[Part]) -> bool:
        """Whether V_local joins something, or reads a join that flows already."""
        return len(local) > 1 or (len(local) == 1 and local[0] not in parts)

    def _local(self, cluster: Cluster, parts: Sequence[Part]) -> tuple[list[Part], list[Part]]:
        """V_local: what base and derived streams of the cluster cover most of the query; and V_remote, the other parts.

        A derived stream may cover remote ones, too, if it is no faster than what it stands for.
        """
        covers: dict[int, tuple[Part, ...]] = {0: ()}
        for piece in self._pieces(cluster, parts):
            for streams, used in list(covers.items()):
                if streams & piece.streams == 0:
                    covers.setdefault(streams | piece.streams, (*used, piece))
        problem = self.search.problem
        whole = [pieces for pieces in covers.values() if pieces and can_be_joined(problem, pieces)]
        local = max(whole, key=lambda pieces: (united(pieces).bit_count(), -len(pieces)), default=())
        covered = united(local)
        return list(local), [part for part in parts if part.streams & covered == 0]

    def _pieces(self, cluster: Cluster, parts: Sequence[Part]) -> list[Part]:
        """What is in a cluster: parts, and derived streams that stand for several parts. Larger ones come first."""
        search, problem = self.search, self.search.problem
        pieces = {part.streams: part for part in parts if search.is_inside(cluster, part)}
        for number, each in enumerate(problem.derived):
            stood_for = [part for part in parts if part.streams & each.streams]
            rates = sum(problem.beta(1 << stream) for stream in members_of(each.streams))
            is_whole = united(stood_for) == each.streams and len(stood_for) > 1
            if is_whole and each.origin.beta <= rates and each.streams not in pieces:
                derived = search.part(Reused(number))
                if search.is_inside(cluster, derived):
                    pieces[each.streams] = derived
        return sorted(pieces.values(), key=lambda piece: (-piece.streams.bit_count(), piece.streams))

    def _is_time(self, cluster: Cluster, local: Sequence[Part], rest: Sequence[Part]) -> bool:
        """NPC's rule: Ω ≥ Γ."""
        if self.waiting is None:
            return True
        hierarchy, problem = self.search.hierarchy, self.search.problem
        trial = Within(problem, hierarchy)  # An estimate: what it looks at is not what the search decides among.
        present = problem.cost(trial.place(cluster, local, cluster.coordinator), cluster.coordinator)
        later = self._later(cluster)
        remote = united(rest)
        remote_beta = problem.beta(remote) if can_be_joined(problem, rest) else sum(_beta(part) for part in rest)
        streams = range(len(problem.streams))
        result = problem.beta(problem.whole)
        wanted = result if self.waiting == "result" else sum(problem.beta(1 << stream) for stream in streams)
        assert remote, "something is remote"
        gamma = present + sum(share * remote_beta * ms for share, ms in later)
        return sum(share * wanted * ms for share, ms in later) >= gamma

    def _later(self, cluster: Cluster) -> list[tuple[float, float]]:
        """For each level above, the share of the unseen network that is first seen there (p_i), and its width (d_i)."""
        hierarchy = self.search.hierarchy
        path = hierarchy.path(self.search.problem.sink)
        seen = {each.level: sum(1 for _ in each.peers()) for each in path}
        unseen = max(len(hierarchy) - seen[cluster.level], 1)
        levels = range(cluster.level + 1, hierarchy.height + 1)
        return [((seen[level] - seen[level - 1]) / unseen, hierarchy.width(level)) for level in levels]


def _beta(part: Part) -> float:
    return sum(origin.beta for origin in part.origins)

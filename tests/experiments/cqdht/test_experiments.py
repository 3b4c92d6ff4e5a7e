"""The experiments on CQ-DHT, in small: they run, and what holds at any size does."""

from __future__ import annotations

import pytest

from experiments.cqdht import e1, e2, e3, e4, e5

pytestmark = pytest.mark.slow
SCALE = 0.02  # 200 peers, two relations, 160 queries.
SMALLER = 0.005  # 50 peers, and 250 tuples.
SEED = 1
ALL_ATTRIBUTES = [f"a{number}" for number in range(10)]


def test_e1_hops_fall_as_fingers_train_and_ours_needs_fewer_than_sai():
    asked = [each for each in e1.cells(SCALE, SEED) if each["algorithm"] != "live"]
    found = e1.Found(asked, [e1.cell(**each) for each in asked])
    for algorithm in e1.PAPERS:
        untrained, *_, trained = found.points[algorithm]
        assert trained["hops"] < untrained["hops"], algorithm
    last = {name: points[-1] for name, points in found.points.items()}
    assert last["dai-v"]["hops"] < last["sai"]["hops"] < last["dai-t"]["hops"] < last["dai-q"]["hops"]
    assert last["dai-t"]["fingers"] == last["dai-q"]["fingers"] > last["sai"]["fingers"]
    assert last["cells"]["hops"] < last["sai"]["hops"]
    assert last["cells"]["bytes"] < last["sai"]["bytes"] < last["dai-t"]["bytes"]
    assert found.ungrouped["joins"] > found.points["dai-q"][0]["joins"]
    assert len(found.claims()) == 10
    assert {claim.says.partition(":")[0] for claim in found.claims() if claim.where == "ours"} == {"cells (model)"}


def test_e1_the_parts_of_a_run_add_up_to_it():
    plain = {"algorithm": "dai-t", "scale": SCALE, "seed": SEED, "trained": 2, "queries": 1.0, "groups": True}
    (whole,) = [e1.cell(**plain, attributes=ALL_ATTRIBUTES)]
    parts = e1.added([e1.cell(**plain, attributes=part) for part in (ALL_ATTRIBUTES[:3], ALL_ATTRIBUTES[3:])])
    for one, other in zip(whole, parts, strict=True):
        for name in ("hops", "index", "joins", "fingers"):
            assert one[name] == pytest.approx(other[name]), name


def test_e2_sai_needs_less_as_big_relations_get_more():
    hops = [e2.cell(algorithm="sai", bos=bos, scale=SCALE, seed=SEED)["hops"] for bos in (1, 19)]
    assert hops[0] > hops[1]


def test_e3_replicas_share_the_filtering_and_none_has_two_of_one_attribute():
    found = {degree: e3.cell(degree=degree, scale=0.005, seed=SEED) for degree in (1, 10)}
    assert found[1]["RF"]["used"] < found[10]["RF"]["used"]
    assert found[1]["RF"]["max"] > found[10]["RF"]["max"]
    assert found[1]["RF"]["total"] == found[10]["RF"]["total"]
    assert found[10]["doubled"] <= found[10]["doubled_plain"]


def test_e4_and_e5_loads_are_as_the_paper_orders_them():
    tf = {name: e4.cell(algorithm=name, scale=SMALLER, seed=SEED) for name in e4.ALL}
    means = {name: loads["TF"]["mean"] for name, loads in tf.items()}
    assert means["dai-t"] < means["sai"] < means["dai-q"]
    assert tf["dai-q"]["TS"]["mean"] < tf["dai-t"]["TS"]["mean"]
    assert tf["cells"]["TF"]["uneven"] < tf["dai-t"]["TF"]["uneven"]
    assert tf["dai-v"]["TF"]["uneven"] == max(loads["TF"]["uneven"] for loads in tf.values())
    asked = next(each for each in e5.cells(SMALLER, SEED) if each.get("peers") == 2.0)
    assert e4.cell(**asked)["TF"]["mean"] < means["dai-q"]


def test_e1_live_needs_less_than_trained_sai_and_dai_t_where_peers_know_each_other():
    plain = {"scale": SCALE, "seed": SEED, "attributes": ALL_ATTRIBUTES, "trained": 2, "queries": 1.0}
    asked = [{**plain, "algorithm": name, "groups": True, "peers": 16} for name in e1.BESIDE]
    asked.append({**plain, "algorithm": "dai-q", "groups": False})
    found = e1.Found(asked, [e1.cell(**each) for each in asked])
    untrained, trained = found.live[16, "live"]
    assert trained["hops"] == pytest.approx(untrained["hops"], rel=0.2), "it has nothing to learn"
    assert trained["bytes"] < untrained["bytes"], "evaluators are told each query once"
    assert [claim.holds for claim in found.live_claims()] == [True, True]


def test_e2_to_e5_have_a_live_column():
    assert e2.cell(algorithm="live", bos=1, scale=0.001, seed=SEED)["hops"] > 0
    loads = e4.cell(algorithm="live", scale=0.002, seed=SEED, queries=0.1, replicas=2)
    assert loads["TF"]["used"] == loads["TS"]["used"] == 20
    shared = [each for each in e5.cells(SCALE, SEED) if each["algorithm"] == "live"]
    assert len(shared) == len(e5.GROWN) * len(e5.TIMES)

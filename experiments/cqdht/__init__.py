"""CQ-DHT as the paper describes it: its machines, a workload, and experiments E1 to E5 (Idreos et al., ICDE 2006).

No peer runs these machines. What peers run is in protocols/join_index, and docs/papers.md says where that departs.
All modules but e1 to e5 are pure, as protocols/ is.

    publisher ── AL_INDEX ──▶ rewriter ── JOIN ──▶ evaluator ── NOTIFY ──▶ subscriber
    publisher ── VL_INDEX ──▶ evaluator ── FINGER ──▶ rewriter
    subscriber ── ASK_RATE, QUERY, REMOVE_QUERY ──▶ rewriter ── RATE, QUERY_INDEXED, QUERY_REFUSED ──▶ subscriber
                                                    rewriter ── FORGET_QUERY ──▶ evaluator
    rewriter ── BUNDLE ──▶ holder of cells ── HANDED_ON, HALVED ──▶ rewriter
                           holder of cells ── ASK_LOAD ──▶ any peer ── PEER_LOAD ──▶ holder ── MOVED ──▶ another holder

| message | sent by | sent to | meaning |
|---|---|---|---|
| AL_INDEX | a publisher | a rewriter of an attribute | A tuple: trigger the queries that wait for it. |
| VL_INDEX | a publisher | the evaluator of an attribute's value | A tuple: meet the queries that ask for it. |
| ASK_RATE | the subscriber of a join | a rewriter | How fast do tuples come under this attribute? |
| RATE | the rewriter | the subscriber | So many came lately, with this share of the most frequent value. |
| QUERY | the subscriber | a rewriter | Index this join by one of its sides. |
| QUERY_INDEXED | the rewriter | the subscriber | No later tuple passes it by here. |
| QUERY_REFUSED | the rewriter | the subscriber | It is not kept here, and why. |
| REMOVE_QUERY | the subscriber | a rewriter | The query is over. |
| FORGET_QUERY | a rewriter | an evaluator | The query is over: forget what was made of it. |
| JOIN | a rewriter | an evaluator | Queries rewritten by a trigger: all that one evaluator gets of it. |
| FINGER | an evaluator | a rewriter | I am the evaluator of this key. |
| NOTIFY | an evaluator | the subscriber | Results. |
| BUNDLE | a rewriter, a holder | a holder of cells | What its cells of a value get of a tuple. |
| MOVED | a holder of cells | another | You hold these cells; what is in them has met here. |
| HANDED_ON | a holder of cells | rewriters | These cells of a value have another holder. |
| HALVED | a holder of cells | rewriters | A cell has been halved so often. |
| ASK_LOAD | a holder of cells | any peer | How much has there been to compare at you? |
| PEER_LOAD | the peer | the holder | So much. |
"""

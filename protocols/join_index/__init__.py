"""Continuous two-way equi-joins through the DHT, as in CQ-DHT (Idreos et al., ICDE 2006): SAI, DAI-Q, DAI-T and DAI-V.

A query has a subscriber, a rewriter for each side, and evaluators. Every peer can be any of them (`machine.py`).

- The subscriber is the peer of the query's proxy (`subscriber.py`, `attempt.py`, `reports.py`). It chooses the
  algorithm (`choice.py`, `known.py`), how many rewriters share a side (`replicas.py`), and how many evaluators share a
  value (`heavy.py`).
- A rewriter is found by the key of an attribute (`keys.py`). It reads the stream of this attribute for all queries that
  are indexed there (`rewriter.py`, `reader.py`), and sends each tuple to the evaluators of its values (`parcels.py`).
  Where the sides of a query meet, it also names the evaluators (`panel.py`).
- An evaluator keeps tuples and triggers by value (`evaluator.py`, `tables.py`, `stays.py`). Where two of them meet, it
  finds the queries they concern (`selections.py`) and sends the results to the subscribers.

`condition.py` says which joins can be indexed, `messages.py` what peers say. Three words are used throughout:

- A trigger is a tuple of one side that looks for partners of the other side: the paper's rewritten query.
- A group is all queries with the same algorithm and join condition. They share tuples, triggers and messages.
- A life is an incarnation of a peer. All state is soft: a peer that restarts has a new life and none of its old state,
  and the queries that counted on it begin a new attempt.
"""

"""The table of rights leaves no command out, and what a later release adds is for admins until it is in the table."""

from __future__ import annotations

from protocols.messages import Command
from protocols.rights.needs import FREE, OF_COMMAND, OF_MESSAGE, OF_SUBSCRIPTION, Need, of_command
from protocols.wire import COMMANDS, MESSAGES

# What needs no right, or is judged by its content (entries of the store) or by who began it (the end of a query).
OTHER_MESSAGES = """
ADD_SUBTREE ASK_EVALUATORS BACKED COVERED DEPLOYED DEPLOY_REFUSED EVALUATORS FLOW FLOWED INVALIDATE_MAP JOIN_RESULTS
KEEP_QUERIES MAP NOTIFIED NOT_ALLOWED OPERATOR_MAPPED OPERATOR_REMAPPED PREPARED PROXY_ANSWER PUBLISHER_NEWS
QUERY_INDEXED QUERY_LOST QUERY_REFUSED RECEIPT REMOVE_QUERY RIGHTS_NEWS STORE_ACK STORE_DIGEST STORE_ENTRIES STORE_FETCH
STORE_FOUND STORE_GET STORE_LEAVING STORE_OFFER STORE_PULL STORE_PUT STORE_PUT_DONE STORE_REPLICATE SUBGRAPH_STATUS
SUBSCRIBED UNDEPLOY
""".split()


class Unheard(Command, frozen=True, kw_only=True, tag="UNHEARD"):
    """A command of a later release."""


def test_every_command_is_in_the_table():
    assert sorted(map(str, (*OF_COMMAND, *OF_SUBSCRIPTION, *FREE))) == sorted(map(str, COMMANDS.kinds))


def test_a_command_that_is_not_is_for_admins():
    assert of_command(Unheard()) == Need("admin", "*")


def test_somebody_has_thought_about_every_message():
    """A new message is put into the table, or into the list above: the one or the other."""
    judged = [str(kind.__struct_config__.tag) for kind in OF_MESSAGE]
    assert sorted((*judged, *OTHER_MESSAGES)) == sorted(str(kind.__struct_config__.tag) for kind in MESSAGES.kinds)

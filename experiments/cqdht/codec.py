"""The paper's messages as bytes: a codec of their own, for no peer understands them."""

from __future__ import annotations

from typing import Final

from experiments.cqdht import messages
from protocols.messages import Message
from protocols.wire import Codec

CODEC: Final = Codec(Message, (messages,))

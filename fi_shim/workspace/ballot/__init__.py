"""Can we? How the ranks of a group come to one verdict: `join` a vote over a transport, then hold rounds in the session."""

from fi_shim.workspace.ballot.operations import Limits
from fi_shim.workspace.ballot.session import Session, join
from fi_shim.workspace.ballot.transport import AllgatherTransport
from fi_shim.workspace.ballot.worker import SilentError

__all__ = ["AllgatherTransport", "Limits", "Session", "SilentError", "join"]

"""The port on which the ranks of a model meet stays theirs from the moment it is chosen.

OpenRLHF's first rank asks the kernel for a free port, gives it back, and listens on it after the engines have started.
Until then any connection of the machine may take it as its own port, and the job ends with EADDRINUSE.
"""

from __future__ import annotations

import socket


def held_port() -> int:
    """A free TCP port that, until this process ends, only a listener with SO_REUSEADDR gets, such as torch's store."""
    holder = socket.socket()
    holder.bind(("", 0))
    # Set after the bind, so that the port is one that nobody else has bound either.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port = holder.getsockname()[1]
    holder.detach()  # stays open when the object is gone
    return port

"""The port that OpenRLHF chooses for a model's ranks is nobody else's until they meet on it."""

import errno
import importlib
import socket
import struct
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from openrlhf_stare import worker

worker.install()
launcher = importlib.import_module("openrlhf.trainer.ray.launcher")

IP_LOCAL_PORT_RANGE = 51  # Linux 6.3: of which ports a connection may take its own


@pytest.fixture
def port(monkeypatch):
    """The port of OpenRLHF's own first rank."""
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")  # OpenRLHF's actor sets them; pytest puts them back
    actor = launcher.BaseDistributedActor(1, 0, "127.0.0.1", None)
    address, port = actor.get_master_addr_port()
    assert address == "127.0.0.1"
    return port


def test_the_ranks_meet_on_it(port):
    served = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20))
    reached = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=20))
    served.set("rank 0", "here")
    assert reached.get("rank 0") == b"here"


def test_no_connection_takes_it_as_its_own(port):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        try:
            client.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("I", port | port << 16))
        except OSError:
            pytest.skip("Linux below 6.3 does not let a connection choose among given ports only")
        with pytest.raises(OSError, match="assign requested address"):
            client.connect(server.getsockname())


def test_no_other_socket_is_bound_to_it(port):
    with socket.socket() as other, pytest.raises(OSError, match="in use") as error:
        other.bind(("", port))
    assert error.value.errno == errno.EADDRINUSE


def test_each_model_has_its_own(port):
    others = {launcher.BaseDistributedActor._get_free_port() for _ in range(20)}
    assert len(others | {port}) == 21

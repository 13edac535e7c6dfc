"""A driver that waits for an actor which waits for a dead one: started by `test_faults.py`."""

import os
import signal
import time

import ray

from openrlhf_stare.driver import deaths


@ray.remote(num_cpus=0)
class Mortal:
    def pid(self) -> int:
        return os.getpid()

    def wait(self) -> None:
        time.sleep(600)


ray.init(num_cpus=1, include_dashboard=False)
with deaths.watched():
    dead, alive = Mortal.remote(), Mortal.remote()
    os.kill(ray.get(dead.pid.remote()), signal.SIGKILL)
    ray.get(alive.wait.remote())

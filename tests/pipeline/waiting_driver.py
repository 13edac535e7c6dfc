"""A driver that waits for an actor which waits for a dead one: started by `test_faults.py`.

Two actors die. One has the name of OpenRLHF's engines; the other is a user's, such as an agent's environment.
"""

import os
import signal
import sys
import time

import ray
from ray._private.state import actors

from openrlhf_stare.driver import deaths, signals


class Mortal:
    def pid(self) -> int:
        return os.getpid()

    def wait(self) -> None:
        time.sleep(600)


@ray.remote(num_cpus=0)
class Environment(Mortal):
    pass


@ray.remote(num_cpus=0)
class RolloutRayActor(Mortal):
    pass


def kill(actor) -> None:
    """End its process and wait until Ray knows."""
    os.kill(ray.get(actor.pid.remote()), signal.SIGKILL)
    while actor._actor_id.hex() not in actors(actor_state_name="DEAD"):
        time.sleep(0.2)


ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
try:
    with signals.told(), deaths.watched():
        signals.listen_to_sigterm()
        environment, engine, alive = Environment.remote(), RolloutRayActor.remote(), Environment.remote()
        kill(environment)
        if sys.argv[1:] == ["waits"]:
            print("waiting", flush=True)
            ray.get(alive.wait.remote())
        print(f"after the environment: {deaths.first_death()}", flush=True)
        os.kill(ray.get(engine.pid.remote()), signal.SIGKILL)
        ray.get(alive.wait.remote())
finally:
    ray.shutdown()  # as the command does: what Ray still has to say comes before the sentence

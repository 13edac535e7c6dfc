"""A driver that waits for a stopped actor, and for one which waits for a dead one: started by `test_faults.py`.

Two actors die. One has the name of OpenRLHF's engines; the other is a user's, such as an agent's environment.
"""

import os
import signal
import sys
import time

import ray
from ray._private.state import actors

from openrlhf_stare.driver import cluster, deaths, signals, waiting
from openrlhf_stare.replacing import replaced


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


@ray.remote(num_cpus=0)
class PolicyModelActor(Mortal):
    def fit(self, seconds: float) -> None:
        time.sleep(seconds)


def stop_one_of_three() -> None:
    """Rank 1 is stopped while it trains, rank 0 is not ready before it, and rank 2 is."""
    waiting.LOOK_SECONDS, waiting.PATIENCE_SECONDS = 1, 4
    ranks = [PolicyModelActor.remote() for _ in range(3)]
    pids = ray.get([rank.pid.remote() for rank in ranks])
    print(f"ranks {pids}", flush=True)
    with waiting.told():
        fits = [rank.fit.remote(seconds) for rank, seconds in zip(ranks, (16, 2, 0), strict=True)]
        time.sleep(1)
        os.kill(pids[1], signal.SIGSTOP)
        time.sleep(13)
        os.kill(pids[1], signal.SIGCONT)
        ray.get(fits)


def kill(actor) -> None:
    """End its process and wait until Ray knows."""
    os.kill(ray.get(actor.pid.remote()), signal.SIGKILL)
    while actor._actor_id.hex() not in actors(actor_state_name="DEAD"):
        time.sleep(0.2)


with replaced(cluster.RESOLVE, cluster.as_it_is):
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, **cluster.ON_LOOPBACK)
try:
    if sys.argv[1:] != ["waits"]:
        stop_one_of_three()
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

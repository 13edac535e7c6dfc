"""A driver that waits for a cluster which grows: started by `test_autoscaler.py` with the flags of a job."""

import sys
import time

import ray
from harness import parse

from openrlhf_stare.driver import scaling

args = parse(sys.argv[1:])
ray.init(log_to_driver=False)
while not scaling.autoscales():  # its first report comes some seconds after the start
    time.sleep(0.5)
scaling.wait_for_resources(args)
print(f"It has {ray.cluster_resources()['GPU']:g} GPUs", flush=True)

"""Before any of the tests here: without flash-attn OpenRLHF can only be imported with its stand-ins."""

from openrlhf_stare import worker

worker.install()

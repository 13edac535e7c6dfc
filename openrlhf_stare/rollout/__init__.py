"""From samples to experiences: subclasses of OpenRLHF's samples generator, experience maker, trainers and engine.

Each starts with what breaks without it, for every user of OpenRLHF 0.11.2 or for those of our methods. Which process
installs what is in `substitutions.py`.
"""

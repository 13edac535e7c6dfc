"""What lives inside OpenRLHF's Ray actors: the policy actor, its loss, the experience maker's guards."""

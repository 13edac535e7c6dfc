"""OpenRLHF's actor group. As a package its Ray ends with its tests; else pytest keeps it until all tests have run."""

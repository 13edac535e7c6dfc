"""From published mathematics data sets to the prompt files that OpenRLHF reads: `python -m openrlhf_stare.data`."""


class DataError(Exception):
    """The data cannot be prepared; the message is one sentence that says why and what to do."""

"""From a run's logs to pictures: `python -m openrlhf_stare.report RUN [RUN …] -o report.html`.

`reading` takes in the TensorBoard logs and the token record of a run, `figures` draws them, and `page` makes one page.
"""


class ReportError(ValueError):
    """The report cannot be made. The message is one sentence."""

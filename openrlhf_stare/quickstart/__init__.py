"""A first job: the task, the model and the flags of `openrlhf-stare quickstart`, which the studies start from, too."""

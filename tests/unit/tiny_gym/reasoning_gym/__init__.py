"""reasoning-gym's interface with some tasks of a few lines, so that no test needs that package."""

from reasoning_gym.factory import DATASETS


def create_dataset(name, size, seed, **settings):
    return DATASETS[name][0](size=size, seed=seed, **settings)


def get_score_answer_fn(name):
    return DATASETS[name][0]().score_answer

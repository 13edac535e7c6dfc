"""Model and prompts of the addends task, which the package has: python launch/addends/make.py OUT_DIR [--help]"""

from openrlhf_stare.quickstart.task import TASK, main, make_prompts

__all__ = ["TASK", "make_prompts"]

if __name__ == "__main__":
    main()

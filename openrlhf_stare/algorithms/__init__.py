"""The mathematics that methods share: functions of tensors and process groups, and the controller.

Nothing here imports more than torch and `options.py`, and nothing knows a method by its name.
"""

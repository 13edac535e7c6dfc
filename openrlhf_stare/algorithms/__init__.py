"""The mathematics: functions of tensors and process groups. Nothing here imports more than torch."""

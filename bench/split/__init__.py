"""One long clip, decoded by one worker and by two: in parts, and with frame threads where it has no parts.

command.py   `python -m bench split`     trainer.py  the process that waits for the batch
requests.py  what it is told, and answers  recipe.py   clips that note who decodes which part
report.py    figures, targets, table. Pure
"""

"""The learning demo: a small policy learns to fix bugs through an unmodified agent, on a CPU, offline.

``oracle`` plays a mediocre agent, ``policy`` builds a small model for what the harness really sends, ``lessons`` and
``fine_tune`` teach it to read and the oracle's ways, ``learn`` trains it by GRPO on graded episodes, ``curve`` shows
what it learned.
"""

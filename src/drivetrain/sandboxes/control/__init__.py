"""The owner's end of PID 1 (``inside/init.py``): commands, their output, files. Shared by local and Docker."""

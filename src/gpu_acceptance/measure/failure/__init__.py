"""A job of its own in which one rank dies: does its launcher notice, end all others and name it?"""

import signal

EXIT_CODE = 41
WAYS = {"exit": EXIT_CODE, "kill": -signal.SIGKILL}  # to die -> the exit code that a launcher sees

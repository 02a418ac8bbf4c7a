"""Facts that the machine reports about itself, and what its GPUs do over time. A missing answer stays missing; nothing is guessed."""

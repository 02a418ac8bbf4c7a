"""Text and data from files and machines, read strictly and written safely; facts about Linux processes, and their clean-up."""

"""Dialogues in which functions are called: read from files, split, and scored where a model has generated the calls. Needs no torch."""

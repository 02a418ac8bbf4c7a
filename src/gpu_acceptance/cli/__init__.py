"""`gpu-acceptance`: its verbs, a node as a file and on the screen."""

"""`gpu-acceptance`: the verbs that need no GPU."""

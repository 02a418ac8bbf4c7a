"""`python -m gpu_acceptance` is `gpu-acceptance`."""

import sys

from gpu_acceptance.cli.verbs import main

sys.exit(main())

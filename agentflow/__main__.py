"""`python -m agentflow`: the command line, where the `agentflow` script is not on the path."""

import sys

from agentflow.cli import main

if __name__ == "__main__":
    sys.exit(main())

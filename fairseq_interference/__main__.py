"""``python -m fairseq_interference VERB``: the same as the console script."""

import sys

from fairseq_interference.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m fuseconv` is the command `fuseconv`, for a Python whose scripts are not on the PATH."""

import sys

from fuseconv.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""Makes `python -m fuseconv` the same as the command `fuseconv`, for when Python's scripts are not on the PATH."""

import sys

from fuseconv.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""``python -m foredraft``: the same as the ``foredraft`` command."""

import sys

from foredraft.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""``python -m roofline``."""

import sys

if __name__ == "__main__":
    try:
        from roofline.cli import main
    except KeyboardInterrupt:  # while modules load
        sys.exit(130)
    main()

"""``python -m roofline``."""

from roofline.cli import main

if __name__ == "__main__":
    main()

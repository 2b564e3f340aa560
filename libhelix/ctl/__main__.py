"""`python -m libhelix.ctl` is helixctl."""

from libhelix.ctl.main import main

if __name__ == "__main__":
    main()

"""helixctl, the command line."""

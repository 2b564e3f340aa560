"""helixd as a service of a systemd that is really booted, in a namespace of its own."""

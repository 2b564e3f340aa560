"""The daemon of a node: core decides, runtime does, worker decodes."""

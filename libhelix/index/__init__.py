"""The index: one Arrow file that knows every sample without opening its media."""

"""What helixctl doctor looks at. A module reads what is there, and judges what was read by pure functions."""

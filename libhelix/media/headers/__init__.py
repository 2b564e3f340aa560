"""What is in a media file, told by its headers alone, without FFmpeg and in a few reads."""

#!/bin/sh
# Stands where `make install-service` puts the command of its virtual environment.
# An interpreter below /root names its library there, where this user cannot read, and takes the system's.
export LD_LIBRARY_PATH=/opt/datahelix/python/lib
export PYTHONPATH=/opt/datahelix/source:/opt/datahelix/site PYTHONDONTWRITEBYTECODE=1
exec /opt/datahelix/python/bin/python3 -m helixd "$@"

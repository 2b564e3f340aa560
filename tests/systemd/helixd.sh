#!/bin/sh
# Stands where `make install-service` puts the command of its virtual environment.
export PYTHONPATH=/opt/datahelix/source:/opt/datahelix/site PYTHONDONTWRITEBYTECODE=1
exec /opt/datahelix/python/bin/python3 -m helixd "$@"

#!/bin/sh
# Stands where `make install-service` puts the command of its virtual environment.
export PYTHONPATH=/opt/datahelix/source:/opt/datahelix/site PYTHONDONTWRITEBYTECODE=1
export LD_LIBRARY_PATH=/opt/datahelix/python/lib
exec /opt/datahelix/python/bin/python3 -m helixd "$@"

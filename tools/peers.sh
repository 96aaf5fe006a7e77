#!/bin/sh
# What benchmarks/worker.py needs of the system beside what pip can install: the servers that the
# other job queues keep their jobs in. The benchmark starts its own of each, on ports and
# directories of its own. Nothing is done if they are there.
set -eu

missing=""
command -v redis-server >/dev/null 2>&1 || missing="$missing redis-server"
# Debian keeps PostgreSQL's programs out of the PATH.
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null 2>&1 ||
    missing="$missing postgresql"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "the peers need$missing: install with the system's package manager" \
        "(Debian, as root: apt-get install$missing)" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet=2
# shellcheck disable=SC2086 # one word for each package
apt-get install --quiet=2 --yes --no-install-recommends $missing

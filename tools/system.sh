#!/bin/sh
# What the tests need of the system and pip cannot install: strace, which records the system calls
# of a run so that power cuts can be simulated; curl and node, in which the examples are written.
# Nothing is done if they are there.
set -eu

missing=""
for command in strace curl node; do
    command -v "$command" >/dev/null 2>&1 || missing="$missing $command"
done
[ -n "$missing" ] || exit 0

# The packages are called like the commands, but for one.
missing=$(echo "$missing" | sed 's/\bnode\b/nodejs/')
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "the tests need$missing: install with the system's package manager" \
        "(Debian, as root: apt-get install$missing)" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet=2
# shellcheck disable=SC2086 # one word for each package
apt-get install --quiet=2 --yes --no-install-recommends $missing

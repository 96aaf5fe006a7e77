#!/bin/sh
# Prints the Python that .venv is to be made with: the one named as an argument, else python3, or
# another build of the same version if that is much faster. A Python built from source without
# --enable-optimizations takes up to half as long again as a distribution's for the same code.
set -eu

fail() {
    echo "$1" >&2
    exit 1
}

# Prints the version and how many microseconds a little work takes; nothing if it is too old, or
# cannot make environments.
trial='
import sys
if sys.version_info >= (3, 11):
    import ensurepip, time, venv
    class Job:
        def __init__(self, n): self.n, self.name = n, f"job {n}"
        def due(self, at=0, *, later=0): return self.n + at + later
    def due(jobs):
        for job in jobs: yield job.due(1, later=2)
    def work():
        began, seen = time.process_time_ns(), {}
        for i in range(2_000):
            job = Job(i)
            seen[job.name[-2:], i & 7] = [job, *due((job,))]
            try: seen[i]
            except KeyError as error: str(error)
        sorted(seen)
        return time.process_time_ns() - began
    print("%d.%d" % sys.version_info[:2], min(work() for _ in range(15)) // 1000)
'
try() {
    for _ in 1 2 3; do # the least of what it takes: whatever else runs here only adds to it
        "$1" -I -c "$trial" 2>/dev/null || true
    done | sort -k 2 -n | head -n 1
}

chosen=${1:-python3}
found=$(try "$chosen")
[ -n "$found" ] || fail "Penstock needs Python 3.11 or newer with venv, and $chosen is not: make PYTHON=python3.11"
version=${found% *}
if [ $# = 0 ]; then
    least=${found#* }
    for other in "/usr/bin/python$version" "/usr/local/bin/python$version"; do
        found=$(try "$other")
        took=${found#* }
        # Of equals the one that the caller would have got.
        if [ "${found% *}" = "$version" ] && [ $((took * 115)) -lt $((least * 100)) ]; then
            chosen=$other
            least=$took
        fi
    done
    [ "$chosen" = python3 ] ||
        echo "using $chosen, a faster build than python3 (make PYTHON=python3 for that one)" >&2
fi
echo "$chosen"
